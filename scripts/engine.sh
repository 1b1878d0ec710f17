# Functions for scripts that need a Docker engine; source it from the root of the
# repository. The one of DOCKER_HOST or of /var/run/docker.sock is used if there is
# any; else a private one runs until engine_stop, or until the script is gone in
# any way: its stdin is a pipe that only the script holds.
engine_pid=''

# engine_start: exports DOCKER_HOST when it started an engine. Fails when there is
# none and none can be started; the reason is on stderr.
engine_start() {
	local line out
	CGO_ENABLED=1 go build -o bin/ ./scripts/cmd/engine || return 1
	coproc ENGINE { exec bin/engine; }
	# When the program is gone already, so are these variables.
	engine_pid=${ENGINE_PID:-$!} out=${ENGINE[0]:-}
	if [ -z "$out" ] || ! read -r line <&"$out"; then
		wait "$engine_pid"
		engine_pid=''
		return 1
	fi
	eval "$line"
}

# engine_stop: ends what engine_start started, and waits until nothing is left.
engine_stop() {
	local pid=$engine_pid in=${ENGINE[1]:-}
	[ -n "$pid" ] || return 0
	engine_pid=''
	[ -z "$in" ] || exec {in}>&-
	wait "$pid"
}
