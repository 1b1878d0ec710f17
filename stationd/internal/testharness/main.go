// Command testharness is the agent daemon of stationd's own tests: an HTTP server
// that behaves, unless it is told to misbehave, one flag for each way (station
// §16). It is a program like any other harness; nothing in stationd knows it.
//
// It listens on -host and -port, answers GET /health, and prints one line when it
// does. What it is asked over HTTP stands in serve.go, what it tells of its
// surroundings in look.go, its descendants in child.go.
//
//	testharness -port 7070 -children plain,setsid,fork -deaf
//
// Children that would outlive a careless test end by themselves after -life. Two
// kinds do not: stopped cannot, and respawn cannot be swept away from outside its
// pid namespace (station A2). They start only below a station, that is with
// STATION_ID set.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// endTime is what running answers have when the harness is told to end.
const endTime = 200 * time.Millisecond

// options are the flags.
type options struct {
	host, also, childListen, udp string
	port, bind                   int
	readyAfter                   time.Duration

	deaf      bool
	termExit  int
	exitAfter time.Duration
	exit      int

	children string
	life     time.Duration

	print, printEnv string
	repeat          int
	flood           int64
	every           time.Duration

	auth, authEnv string
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(child(os.Args[2:]))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// say prints the body, as it is.
func say(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(os.Stdout, r.Body)
	outcome(w, n, err)
}

// run is main without the globals.
func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if err != nil {
		return 2
	}
	code, err := serve(o, stdout)
	if err != nil {
		fmt.Fprintf(stderr, "testharness: error: %v\n", err)
		return 1
	}
	return code
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("testharness", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.host, "host", "127.0.0.1", "address to listen on; 0.0.0.0 or :: is the wide bind")
	f.IntVar(&o.port, "port", 0, "port to listen on")
	f.IntVar(&o.bind, "bind", 0, "listen on this port instead of the one told")
	f.StringVar(&o.also, "also", "", "listen on this host:port, too")
	f.StringVar(&o.udp, "udp", "", "hold this UDP host:port, too")
	f.StringVar(&o.childListen, "child-listen", "", "the child of kind fork listens on this host:port")
	f.DurationVar(&o.readyAfter, "ready-after", 0, "wait so long before listening")
	f.BoolVar(&o.deaf, "deaf", false, "ignore TERM, HUP and INT, here and in children")
	f.IntVar(&o.termExit, "term-exit", 0, "exit status after TERM")
	f.DurationVar(&o.exitAfter, "exit-after", 0, "end unasked after so long")
	f.IntVar(&o.exit, "exit", 0, "exit status of -exit-after")
	f.StringVar(&o.children, "children", "", "kinds of children, by comma: plain, setsid, fork (double fork and setsid), stopped, respawn")
	f.DurationVar(&o.life, "life", time.Minute, "children end by themselves after so long")
	f.StringVar(&o.print, "print", "", "text to print")
	f.StringVar(&o.printEnv, "print-env", "", "print the value of this variable")
	f.IntVar(&o.repeat, "repeat", 1, "how often to print")
	f.Int64Var(&o.flood, "flood", 0, "print so many bytes of lines")
	f.DurationVar(&o.every, "every", 0, "wait so long between two prints, and inside them after half the text")
	f.StringVar(&o.auth, "guard", "", "credential to ask for: bearer or basic:USER or header:NAME")
	f.StringVar(&o.authEnv, "guard-env", "", "variable that holds the credential")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q", f.Arg(0))
		fmt.Fprintf(stderr, "testharness: error: %v\n", err)
		return o, err
	}
	return o, nil
}

// serve runs until a signal or the time of -exit-after, and gives the exit status.
func serve(o options, stdout io.Writer) (int, error) {
	signals := make(chan os.Signal, 1)
	if o.deaf {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	} else {
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	}
	if err := startChildren(o); err != nil {
		return 0, err
	}
	out := &wholeLines{out: stdout}
	go talk(o, out)
	time.Sleep(o.readyAfter)

	listeners, err := listen(o)
	if err != nil {
		return 0, err
	}
	server := &http.Server{Handler: guard(o, routes())}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.Serve(l) }()
	}
	out.say(0, fmt.Sprintf("testharness: listening on %s\n", listeners[0].Addr()))

	var end <-chan time.Time
	if o.exitAfter > 0 {
		end = time.After(o.exitAfter)
	}
	code := o.termExit
	select {
	case <-signals:
	case code = <-exits:
	case <-end:
		return o.exit, nil
	case err := <-failed:
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	if err := server.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
		server.Close() // streams have no end of their own
	}
	return code, nil
}

// listen opens what the flags ask for; the first listener is the daemon's own.
func listen(o options) ([]net.Listener, error) {
	port := o.port
	if o.bind != 0 {
		port = o.bind
	}
	var out []net.Listener
	for _, address := range []string{net.JoinHostPort(o.host, fmt.Sprint(port)), o.also} {
		if address == "" {
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	if o.udp != "" {
		if _, err := net.ListenPacket("udp", o.udp); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// wholeLines keeps a line that is printed in pieces free of other lines.
type wholeLines struct {
	mu  sync.Mutex
	out io.Writer
}

// say prints the pieces of a line with a pause between two.
func (w *wholeLines) say(pause time.Duration, pieces ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, p := range pieces {
		if i > 0 {
			time.Sleep(pause)
		}
		fmt.Fprint(w.out, p)
	}
}

// talk prints what the flags ask for.
func talk(o options, out *wholeLines) {
	text := o.print
	if o.printEnv != "" {
		text += os.Getenv(o.printEnv)
	}
	for range o.repeat {
		if text == "" {
			break
		}
		half := len(text) / 2
		out.say(o.every, text[:half], text[half:]+"\n")
		time.Sleep(o.every)
	}
	line := strings.Repeat("flood ", 12) + "\n"
	for n := int64(0); n < o.flood; n += int64(len(line)) {
		if _, err := io.WriteString(out.out, line); err != nil {
			return
		}
	}
}
