package mcpserver_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/bridge/internal/mcpserver"
	"drawbridge/shared/fault"
)

// role makes a re-executed test binary a server on its own stdin and stdout.
const role = "DRAWBRIDGE_TEST_ROLE"

func serveProcess() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	f := newFake()
	tools, err := catalog.New(catalog.Options{Handoff: catalog.Ready(f)})
	if err != nil {
		os.Exit(9)
	}
	s, err := mcpserver.New(mcpserver.Options{Tools: tools, In: os.Stdin, Out: os.Stdout, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		os.Exit(9)
	}
	go func() { // the call in progress ends some time after the stop
		<-s.Stopping()
		time.Sleep(200 * time.Millisecond)
		close(f.gate)
	}()
	os.Exit(fault.ExitCode(s.Run(ctx)))
}

// Proves core 19.59 and 19.60 with a process: stdin end, SIGTERM and SIGINT each end it
// with 0 after the call in progress was answered, and another holder of the
// write end of stdin does not keep it.
func TestServer_Process(t *testing.T) {
	tests := map[string]func(t *testing.T, cmd *exec.Cmd, in *os.File){
		"end of input": func(t *testing.T, _ *exec.Cmd, in *os.File) { in.Close() },
		"SIGTERM":      func(t *testing.T, cmd *exec.Cmd, _ *os.File) { kill(t, cmd, syscall.SIGTERM) },
		"SIGINT":       func(t *testing.T, cmd *exec.Cmd, _ *os.File) { kill(t, cmd, syscall.SIGINT) },
		"all at once": func(t *testing.T, cmd *exec.Cmd, in *os.File) {
			in.Close()
			kill(t, cmd, syscall.SIGINT)
			kill(t, cmd, syscall.SIGTERM)
		},
	}
	for name, stop := range tests {
		t.Run(name, func(t *testing.T) {
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			theirs, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			cmd := exec.Command(exe)
			cmd.Env = []string{role + "=server"}
			cmd.Stdin = theirs
			var log strings.Builder
			cmd.Stderr = &log
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			lines := bufio.NewScanner(out)
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
			if !lines.Scan() {
				t.Fatal("no answer to initialize")
			}
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"agent_knock_knock_send","arguments":{"request":"wait"}}}`)
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
			if !lines.Scan() || !strings.Contains(lines.Text(), `"id":2`) {
				t.Fatalf("ping: %s", lines.Text())
			}
			stop(t, cmd, in)
			if !lines.Scan() || !strings.Contains(lines.Text(), `"id":1`) {
				t.Errorf("the call in progress was not answered: %q", lines.Text())
			}
			if lines.Scan() {
				t.Errorf("one more line: %s", lines.Text())
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("ended with %v; log:\n%s", err, &log)
			}
		})
	}
}

func kill(t *testing.T, cmd *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
