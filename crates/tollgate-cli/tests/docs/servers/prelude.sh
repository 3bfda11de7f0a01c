# Runs one page: `step N` runs a command, `serve N KIND PORT` starts one that goes on.
set -u
cd work
declare -A servers
trap 'for pid in "${servers[@]}"; do kill "$pid"; done 2>/dev/null; wait' EXIT

step() {
  # In this shell, so that variables stay.
  eval "$(cat "../out/$1.sh")" >"../out/$1.out" 2>&1
  # The test judges the code; a page may show a command that fails.
  echo $? >"../out/$1.rc"
}

serve() {
  if [ -n "${servers[$2]:-}" ]; then
    kill "${servers[$2]}"
    wait "${servers[$2]}"
  fi
  eval "exec env $(cat "../out/$1.sh")" >"../out/$1.out" 2>&1 &
  servers[$2]=$!
  for _ in $(seq 400); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$3") 2>/dev/null; then
      echo 0 >"../out/$1.rc"
      return
    fi
    kill -0 "${servers[$2]}" 2>/dev/null || break
    sleep 0.05
  done
  echo "1: it does not answer" >"../out/$1.rc"
  exit 1
}

