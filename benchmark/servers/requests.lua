-- SPDX-License-Identifier: BSD-2-Clause
-- wrk's script: plays a part of a list of requests, in its order, and stops
-- after a fixed number of answers. Arguments: FILE FIRST COUNT.
-- wrk keeps no cookies: sixteen sessions are carried on in turn, here.
-- Every request asks for the connection to be closed, as Unicorn does it
-- anyway: otherwise four connections stay with whichever workers got them.
local SESSIONS = 16
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  file, first, count = args[1], tonumber(args[2]), tonumber(args[3])
  list, sessions = {}, {}
  for line in io.lines(file) do table.insert(list, line) end
  asked, answered, failed, sessions_seen, worst = 0, 0, 0, 0, ""
end

function request()
  local line = list[(first + asked) % #list + 1]
  local method, path, body = line:match("^(%S+) (%S+) ?(.*)$")
  local headers = { ["Connection"] = "close", ["Cookie"] = sessions[asked % SESSIONS] }
  if body ~= "" then headers["Content-Type"] = "application/x-www-form-urlencoded" else body = nil end
  asked = asked + 1
  return wrk.format(method, path, headers, body)
end

function response(status, headers, body)
  answered = answered + 1
  if answered == 1 then io.stderr:write("begun\n") end
  if status >= 400 then
    failed = failed + 1
    worst = tostring(status)
  end
  local cookie = headers["Set-Cookie"] or headers["set-cookie"]
  if cookie then
    sessions[sessions_seen % SESSIONS] = cookie:match("^[^;]*")
    sessions_seen = sessions_seen + 1
  end
  -- wrk itself sleeps on: benchmark/lib/servers/wrk.rb reads this line and sends it SIGINT.
  if answered == count then
    wrk.thread:stop()
    io.stderr:write("answered\n")
  end
end

-- "latencies" has each number of microseconds and how often wrk counts it, in turn.
function done(summary, latency, requests)
  -- No signal shall break off what is written here.
  io.stderr:write("done\n")
  local thread = threads[1]
  local errors = summary.errors
  local counts = {}
  for i = 1, #latency do
    counts[i] = string.format("%d,%d", latency(i))
  end
  io.write(string.format(
    '{"answered":%d,"failed":%d,"status":"%s","connect":%d,"read":%d,"write":%d,"timeout":%d,',
    thread:get("answered"), thread:get("failed"), thread:get("worst"),
    errors.connect, errors.read, errors.write, errors.timeout))
  io.write(string.format('"microseconds":%d,"bytes":%d,"complete":%d,"latencies":[%s]}\n',
    summary.duration, summary.bytes, summary.requests, table.concat(counts, ",")))
end
