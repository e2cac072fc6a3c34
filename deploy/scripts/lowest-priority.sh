#!/bin/bash
# Runs a command at the lowest priority. Called with setsid, because Linux divides the time between sessions first
# (sched(7), autogroup): the nice value of a process counts only within its session, and the one of a session is set here.
set -euo pipefail
echo 19 2>/dev/null >"/proc/$$/autogroup" || true
exec nice -n 19 "$@"
