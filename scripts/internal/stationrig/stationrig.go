// Package stationrig runs the real stationd, with a Store and directories of its own,
// for the demo, the journeys and the measurements. Everything is asked for as an
// operator asks: by the commands of the stationd program; and what goes through the
// gate goes as a client sends it.
//
// What a Rig starts ends with its TB: stationd is told to stop, which stops its
// stations, and nothing of it may be left. Where this process is killed, the lifeline
// does the same.
package stationrig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"drawbridge/scripts/internal/rig"
)

// Bounds of waiting; the machine may be busy.
const (
	readyWait   = 30 * time.Second
	commandWait = 6 * time.Minute // start -wait of a harness that takes its time
	endWait     = 40 * time.Second
	pollEvery   = 20 * time.Millisecond
)

// Nobody is the uid and gid of the daemons that a stationd of root runs.
const Nobody = 65534

// Options say what is run.
type Options struct {
	Bin   string              // directory of stationd and station-shim
	Args  []string            // more arguments of stationd serve, which runs in the Rig's directory
	Files map[string]string   // made there before, by name
	Env   []string            // more variables of stationd serve
	User  *syscall.Credential // who runs stationd and its commands; nil: whoever runs this
}

// Rig is one stationd.
type Rig struct {
	rig.TB
	Options
	Dir    string // everything stands below it
	cmd    *exec.Cmd
	ended  chan struct{}
	status error // of cmd, once ended is closed
}

// New makes the directories and starts stationd; it serves when New returns.
func New(tb rig.TB, o Options) *Rig {
	tb.Helper()
	dir, err := os.MkdirTemp("", "drawbridge-st-") // short: sockets lie below it
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		tb.Fatalf("%v", err)
	}
	r := &Rig{TB: tb, Options: o, Dir: dir}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("%v", err)
		}
	})
	for _, sub := range []string{".", "home", "store", "run", "state", "work"} {
		if err := os.MkdirAll(r.Path(sub), 0o700); err != nil {
			tb.Fatalf("%v", err)
		}
		r.own(sub)
	}
	for name, text := range o.Files {
		r.Write(name, []byte(text))
	}
	tb.Cleanup(r.Stop)
	r.Serve()
	return r
}

// In is the same stationd for another TB, as a subtest's.
func (r *Rig) In(tb rig.TB) *Rig {
	other := *r
	other.TB = tb
	return &other
}

// Path is a path below the Rig's directory.
func (r *Rig) Path(name string) string { return filepath.Join(r.Dir, name) }

// Write makes a file that stationd's user owns.
func (r *Rig) Write(name string, data []byte) string {
	r.Helper()
	if err := os.WriteFile(r.Path(name), data, 0o600); err != nil {
		r.Fatalf("%v", err)
	}
	r.own(name)
	return r.Path(name)
}

func (r *Rig) own(name string) {
	if r.User == nil {
		return
	}
	if err := os.Chown(r.Path(name), int(r.User.Uid), int(r.User.Gid)); err != nil {
		r.Fatalf("%v", err)
	}
}

// Commit makes a git work tree of a directory, with all that lies in it committed on
// the branch main.
func (r *Rig) Commit(name string) {
	r.Helper()
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"commit", "-q", "-m", "a workspace"}} {
		cmd := exec.CommandContext(r.Context(), "git", append([]string{"-C", r.Path(name), "-c", "user.name=drawbridge", "-c", "user.email=drawbridge@example.test"}, args...)...)
		cmd.Env = append(r.env(), "GIT_CONFIG_NOSYSTEM=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.User}
		if out, err := cmd.CombinedOutput(); err != nil {
			r.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
	}
}

// env is what stationd and its commands get of the environment.
func (r *Rig) env() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.Path("home"), "LANG=C.UTF-8",
		"STATIOND_RUNTIME_DIR=" + r.Path("run"),
	}
}

// Serve starts stationd, also again after Kill, and waits until it serves.
func (r *Rig) Serve() {
	r.Helper()
	socket := r.Path("n")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		r.Fatalf("%v", err)
	}
	defer os.Remove(socket)
	defer notify.Close()
	r.own("n")
	log, err := os.OpenFile(r.Path("stationd.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		r.Fatalf("%v", err)
	}
	defer log.Close()
	r.cmd = exec.Command(filepath.Join(r.Bin, "stationd"), append([]string{
		"serve", "-store-dir", r.Path("store"), "-state-dir", r.Path("state"), "-log-level", "debug", "-log-format", "text",
	}, r.Args...)...)
	r.cmd.Dir, r.cmd.Stdout, r.cmd.Stderr = r.Dir, log, log
	r.cmd.Env = append(append(r.env(), r.Env...), "NOTIFY_SOCKET="+socket)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: r.User}
	theirs, ours, err := os.Pipe()
	if err != nil {
		r.Fatalf("%v", err)
	}
	r.cmd.ExtraFiles = []*os.File{theirs}
	r.cmd.Env = append(r.cmd.Env, "DRAWBRIDGE_LIFELINE_FD=3")
	err = r.cmd.Start()
	theirs.Close()
	if err != nil {
		ours.Close()
		r.Fatalf("%v", err)
	}
	cmd, ended := r.cmd, make(chan struct{})
	r.ended = ended
	go func() {
		r.status = cmd.Wait()
		ours.Close() // not before: it ends when this process does
		close(ended)
	}()
	if err := notify.SetReadDeadline(time.Now().Add(readyWait)); err != nil {
		r.Fatalf("%v", err)
	}
	for buf := make([]byte, 4096); ; {
		n, err := notify.Read(buf)
		if err != nil {
			r.Fatalf("stationd is not ready: %v\n%s", err, r.Log())
		}
		if bytes.Contains(buf[:n], []byte("READY=1")) {
			return
		}
	}
}

// PID is stationd's process.
func (r *Rig) PID() int { return r.cmd.Process.Pid }

// Log is the end of what stationd said.
func (r *Rig) Log() string {
	data, err := os.ReadFile(r.Path("stationd.log"))
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-8000):])
}

// Stop tells stationd to end, which ends its stations, and waits. Safe to repeat, and
// after Kill.
func (r *Rig) Stop() {
	r.Helper()
	if r.ended == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-r.ended:
	case <-time.After(endWait):
		_ = r.cmd.Process.Kill()
		<-r.ended
		r.Errorf("stationd did not end within %s\n%s", endWait, r.Log())
	}
	if r.status != nil {
		r.Errorf("stationd: %v\n%s", r.status, r.Log())
	}
	r.ended = nil
}

// Kill ends stationd with SIGKILL; what it supervises lives on.
func (r *Rig) Kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
	r.ended = nil
}

// Until waits until ok says so.
func (r *Rig) Until(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(readyWait); !ok(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			r.Fatalf("not within %s: %s\n%s", readyWait, what, r.Log())
		}
	}
}

// Failure is a command that did not end with 0.
type Failure struct {
	Status  int
	Code    string // of the error
	Message string
	Output  []byte // what it printed all the same
}

func (f *Failure) Error() string { return f.Message }

// Try runs one command of stationd and gives what it printed.
func (r *Rig) Try(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.Bin, "stationd"), args...)
	cmd.Env, cmd.Dir = r.env(), r.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.User}
	cmd.WaitDelay = readyWait
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out.Bytes(), failure(exit.ExitCode(), said.String(), out.Bytes())
	}
	return out.Bytes(), err
}

// failure reads the error that a command printed: text with its code in brackets at
// the end of the line, or an object.
func failure(status int, said string, out []byte) *Failure {
	f := &Failure{Status: status, Message: strings.TrimSpace(said), Output: out}
	var object struct {
		Error string `json:"error"`
	}
	if json.Unmarshal([]byte(said), &object) == nil {
		f.Code = object.Error
		return f
	}
	line, _, _ := strings.Cut(f.Message, "\n")
	if i := strings.LastIndexByte(line, '['); i >= 0 {
		f.Code = strings.TrimSuffix(line[i+1:], "]")
	}
	return f
}

// Run is Try for a command that must work.
func (r *Rig) Run(args ...string) []byte {
	r.Helper()
	out, err := r.Try(r.Context(), args...)
	if err != nil {
		r.Fatalf("stationd %s: %v\n%s\nstationd's log:\n%s", strings.Join(args, " "), err, out, r.Log())
	}
	return out
}

// Ask runs a command that must work with -json and reads its answer into v.
func (r *Rig) Ask(v any, args ...string) {
	r.Helper()
	out := r.Run(append(args, "-json")...)
	if err := json.Unmarshal(out, v); err != nil {
		r.Fatalf("stationd %s: read the answer: %v\n%s", strings.Join(args, " "), err, out)
	}
}
