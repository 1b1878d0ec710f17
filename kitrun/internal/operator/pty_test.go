package operator_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/testkit"
)

// terminal is the person's side of a pseudo-terminal.
type terminal struct {
	master *os.File
	seen   testkit.Buffer
	done   chan struct{}
}

// openTerminal gives a terminal of so many columns and the file for the program.
func openTerminal(t *testing.T, columns uint16) (*terminal, *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master := os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{master: master, done: make(chan struct{})}
	go func() {
		defer close(term.done)
		_, _ = io.Copy(&term.seen, master) // ends with EIO when the last program has gone
	}()
	t.Cleanup(func() {
		slave.Close()
		master.Close()
		<-term.done
	})
	return term, slave
}

// ctrlC is what the person types.
func (term *terminal) ctrlC(t *testing.T) {
	t.Helper()
	if _, err := term.master.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
}

func (term *terminal) shows(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, patience, func() bool { return strings.Contains(term.seen.String(), text) }, "the terminal shows", text)
}

// startAt runs kitrun at a terminal; stdout is a file of its own.
func (w *world) startAt(slave *os.File, args []string, env ...string) *program {
	w.t.Helper()
	cmd := exec.Command(w.path("bin/kitrun"), args...)
	cmd.Env = w.environ(append(env, "TERM=xterm")...)
	cmd.Stdin, cmd.Stderr = slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return &program{testkit.Start(w.t, cmd), w}
}

// At a terminal one line is drawn again and again, is no wider than the terminal,
// and makes room for the log. Ctrl-C cancels: the container is killed and removed,
// the receipt is printed, and brokerd, which the terminal does not reach, closes
// the grant.
func TestRun_Terminal(t *testing.T) {
	w := newWorld(t).prompt("respond hello", "hang")
	term, slave := openTerminal(t, 60)
	p := w.startAt(slave, w.withAuth())
	term.shows(t, "running; 3 events, last item.completed")
	testkit.Eventually(t, patience, func() bool { // it goes on without events
		at := strings.Count(term.seen.String(), "\r\x1b[K")
		return at > 6
	}, "the line is drawn again")
	if strings.Contains(term.seen.String(), "\n") {
		t.Errorf("more than one line: %q", term.seen.String())
	}
	term.ctrlC(t)
	p.exits(1)
	term.shows(t, "cancelling the run; a second signal ends kitrun at once")
	term.shows(t, ": cancelled after ")
	for drawn := range strings.SplitSeq(term.seen.String(), "\r\x1b[K") {
		if line, _, isLog := strings.Cut(drawn, "\r\n"); !isLog && len(line) > 59 { // with the ^C that the terminal echoes
			t.Errorf("a line of %d columns: %q", len(line), line)
		}
	}
	if r := p.receipt(); !r.Terminal.Cancelled || !r.ContainerRemoved {
		t.Errorf("receipt: %s", p.Stdout)
	}
	if g := w.grants(1)[0]; g.CloseReason != "run_ended" || g.Forwarded != 1 {
		t.Errorf("grant: %+v", g)
	}
	if n := w.containers(); n != 0 {
		t.Errorf("%d containers are left", n)
	}
	w.quiet()
}

// stubborn is an engine that does everything but kill and remove.
type stubborn struct {
	net.Listener
	wait    sync.WaitGroup
	mu      sync.Mutex
	asked   int
	release chan struct{}
}

func newStubborn(t *testing.T, path, engine string) *stubborn {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &stubborn{Listener: l, release: make(chan struct{})}
	s.wait.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wait.Go(func() { s.serve(c, strings.TrimPrefix(engine, "unix://")) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		close(s.release)
		s.wait.Wait()
	})
	return s
}

func (s *stubborn) serve(client net.Conn, engine string) {
	defer client.Close()
	server, err := net.Dial("unix", engine)
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(client, server)
		client.Close()
	}()
	defer func() { server.Close(); <-done }()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			line, _, _ := bytes.Cut(buf[:n], []byte("\r\n"))
			if bytes.HasPrefix(line, []byte("DELETE ")) || bytes.Contains(line, []byte("/kill")) {
				s.mu.Lock()
				s.asked++
				s.mu.Unlock()
				<-s.release
				return
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = server.(*net.UnixConn).CloseWrite()
			<-done
			return
		}
	}
}

func (s *stubborn) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// Ctrl-C twice ends kitrun at once, however long the engine takes; a sweep does
// the rest.
func TestRun_TerminalTwice(t *testing.T) {
	w := newWorld(t).prompt("hang")
	engine := newStubborn(t, w.path("e.sock"), w.host)
	term, slave := openTerminal(t, 100)
	p := w.startAt(slave, w.withAuth("--docker-host", "unix://"+w.path("e.sock")))
	term.shows(t, " running")
	term.ctrlC(t)
	testkit.Eventually(t, patience, func() bool { return engine.count() > 0 }, "the container is to be killed")
	select {
	case <-p.Ended:
		t.Fatal("ended after one Ctrl-C, and the container still runs")
	default:
	}
	began := time.Now()
	term.ctrlC(t)
	p.exits(1)
	if took := time.Since(began); took > 10*time.Second { // 1 s of grace, on a machine that does much else
		t.Errorf("it took %v", took)
	}
	term.shows(t, "ended before the container was proven gone")
	term.shows(t, "kitrun worker sweep removes what is left")
	if p.Stdout.Len() > 0 {
		t.Errorf("stdout: %s", p.Stdout)
	}
	w.grants(1)
	w.quiet()
	if n := w.containers(); n != 1 {
		t.Fatalf("%d containers", n)
	}
	w.start("kitrun", []string{"worker", "sweep", "--store-dir", w.path("store")}).exits(0)
	if n := w.containers(); n != 0 {
		t.Errorf("%d containers are left", n)
	}
}
