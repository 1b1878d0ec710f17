package service_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/testkit"
)

// siblingMode makes the test binary a sibling that reports its life; ownerMode
// makes it an owner that starts such a sibling and waits to be killed.
const (
	siblingMode = "SERVICE_TEST_SIBLING"
	ownerMode   = "SERVICE_TEST_OWNER"
)

func init() {
	switch {
	case os.Getenv(siblingMode) != "":
		os.Exit(sibling())
	case os.Getenv(ownerMode) != "":
		os.Exit(owner())
	}
}

func sibling() int {
	g := service.Group{Drain: 5 * time.Second, Stopping: func() { fmt.Println("stopping") }}
	if err := g.AddLifeline(); err != nil {
		return service.Exit(os.Stdout, "sibling", err)
	}
	g.Add("work", func(ctx context.Context) error {
		fmt.Println("works", "sibling="+strconv.FormatBool(g.Sibling), "variable="+os.Getenv(service.LifelineVariable))
		<-ctx.Done()
		return nil
	})
	err := g.Run(context.Background())
	fmt.Println("ends", err)
	return service.Exit(os.Stdout, "sibling", err)
}

func owner() int {
	read, write, err := os.Pipe()
	if err != nil {
		return 1
	}
	exe, _ := os.Executable()
	cmd := exec.Command(exe)
	cmd.Env = []string{siblingMode + "=1", service.LifelineVariable + "=3"}
	cmd.ExtraFiles = []*os.File{read}
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 1
	}
	read.Close()
	err = cmd.Wait()
	write.Close()
	fmt.Println("owner saw", err)
	return 0
}

// start runs the test binary in a mode and gives its output line by line.
func start(t *testing.T, env ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = env
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

func expect(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	if !lines.Scan() || lines.Text() != want {
		t.Errorf("line %q, want %q", lines.Text(), want)
	}
}

// SIGKILL of the owner ends the sibling cleanly.
func TestLifeline_OwnerKilled(t *testing.T) {
	cmd, lines := start(t, ownerMode+"=1")
	expect(t, lines, "works sibling=true variable=")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	expect(t, lines, "stopping")
	expect(t, lines, "ends <nil>")
}

func TestLifeline_None(t *testing.T) {
	cmd, lines := start(t, siblingMode+"=1")
	expect(t, lines, "works sibling=false variable=")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	expect(t, lines, "stopping")
	expect(t, lines, "ends <nil>")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestLifeline_NotAPipe(t *testing.T) {
	for _, value := range []string{"x", "1", "999", "-1", "3"} {
		t.Setenv(service.LifelineVariable, value)
		if value == "3" { // whatever it is in the test process, make it none
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			t.Setenv(service.LifelineVariable, strconv.Itoa(int(f.Fd())))
		}
		if line, err := service.OpenLifeline(); line != nil || !fault.Is(err, fault.Usage) {
			t.Errorf("%s: %v, %v", value, line, err)
		}
	}
}

func TestLifeline_Stop(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	fd, err := syscall.Dup(int(read.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	t.Setenv(service.LifelineVariable, strconv.Itoa(fd))
	line, err := service.OpenLifeline()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- line.Run(ctx) }()
	if _, err := io.WriteString(write, "noise is ignored"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	case <-time.After(30 * time.Millisecond):
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestReady(t *testing.T) {
	path := filepath.Join(testkit.RuntimeDir(t), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	service.Ready()
	service.State("standby\nREADY=0")
	service.Stopping()
	var got []string
	buf := make([]byte, 256)
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	for len(got) < 3 {
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(buf[:n]))
	}
	if want := "READY=1|STATUS=standby READY=0|STOPPING=1"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	t.Setenv("NOTIFY_SOCKET", "")
	service.Ready() // nobody asked
}
