// Command stamp is the callback executable of scripts/bench: it notes when it
// was started and for what, and accepts. The note is a line of the file stamps in
// the directory of -dir: the reading of CLOCK_MONOTONIC in nanoseconds, and the
// first word of stdin that begins with "bench-".
//
// It imports next to nothing, so that its start is that of the Go runtime.
package main

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const maxInput = 1 << 20

func main() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		fail(err)
	}
	given := map[string]string{}
	for i := 1; i+1 < len(os.Args); i += 2 {
		given[os.Args[i]] = os.Args[i+1]
	}
	body, err := io.ReadAll(io.LimitReader(os.Stdin, maxInput))
	if err != nil {
		fail(err)
	}
	word := "none"
	for _, w := range strings.Fields(string(body)) {
		if strings.HasPrefix(w, "bench-") {
			word = w
			break
		}
	}
	f, err := os.OpenFile(given["-dir"]+"/stamps", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fail(err)
	}
	// One write is one line, however many run at once.
	if _, err := f.WriteString(strconv.FormatInt(now.Nano(), 10) + " " + word + "\n"); err != nil {
		fail(err)
	}
	answer := `{"result":{"status":"accepted","acceptance_id":` + strconv.Quote(word) + `},"request":{"delivery_id":` +
		strconv.Quote(given["-delivery-id"]) + `,"message_id":` + strconv.Quote(given["-message-id"]) + "}}\n"
	if _, err := os.Stdout.WriteString(answer); err != nil {
		fail(err)
	}
}

func fail(err error) {
	_, _ = os.Stderr.WriteString("stamp: error: " + err.Error() + "\n")
	os.Exit(1)
}
