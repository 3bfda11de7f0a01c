-- What wrk sends: with `-- N`, each request has the next of N addresses in X-Forwarded-For.
-- What it counted stands on one line at the end: answers, those above 399, failures of sockets.

local addresses, turn = 0, 0

function init(args)
  addresses = tonumber(args[1]) or 0
end

function request()
  if addresses == 0 then
    return wrk.format("GET", "/")
  end
  turn = turn % addresses + 1
  return wrk.format("GET", "/", { ["X-Forwarded-For"] = "198.51.100.7, 192.0.2." .. turn })
end

function done(summary)
  local errors = summary.errors
  local broken = errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format("counted %d %d %d\n", summary.requests, errors.status, broken))
end
