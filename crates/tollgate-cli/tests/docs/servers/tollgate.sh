# The program, on the ports of this test, and with a short load where the page does not say how long.
args=("$@")
case ${1:-serve} in
serve)
  for listener in http:8080 grpc:8081 resp:6380 admin:6070; do
    name=--${listener%:*}
    variable=TOLLGATE_${listener%:*}
    [[ " $* " == *" $name "* || -v ${variable^^} ]] || args+=("$name" "127.0.0.1:${listener#*:}")
  done
  ;;
load)
  if [[ ${3:---} == --* && ${2:---} != --* ]]; then
    declare -A here=([resp]=127.0.0.1:6380 [http]=127.0.0.1:8080 [grpc]=127.0.0.1:8081)
    args=(load "$2" "${here[$2]}" "${@:3}")
  fi
  [[ " $* " =~ " --requests "|" --admit-exactly "|" --duration " ]] || args+=(--duration 300ms --warmup 100ms)
  ;;
esac
exec PROGRAM "${args[@]}"
