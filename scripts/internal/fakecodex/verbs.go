package fakecodex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A verb carries out a word. What it gives is reported when it is not empty; an
// error is reported too, but for ended.
type verb func(c *Codex, rest string) (string, error)

var verbs map[string]verb

func init() { // not a literal: run would refer to itself
	verbs = map[string]verb{
		"print":  func(c *Codex, rest string) (string, error) { c.line(rest); return "", nil },
		"stderr": func(c *Codex, rest string) (string, error) { return "", writeLine(c.Stderr, rest) },
		"replay": replay,
		"silent": func(c *Codex, _ string) (string, error) { c.silent = true; return "", nil },
		"final":  func(c *Codex, rest string) (string, error) { c.final = &rest; return "", nil },
		"usage":  setUsage,
		"fail":   func(c *Codex, rest string) (string, error) { c.failure = rest; return "", nil },
		"exit":   exit,
		"leak":   leak,

		"sleep": sleep,
		"hang":  hang,
		"ignore": func(*Codex, string) (string, error) {
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			return "", nil
		},
		"flood":  flood,
		"fork":   fork,
		"memory": memory,
		"spin":   spin,

		"write":  writeFile,
		"text":   func(_ *Codex, rest string) (string, error) { return "", addText(rest, os.O_CREATE|os.O_TRUNC) },
		"append": func(_ *Codex, rest string) (string, error) { return "", addText(rest, os.O_CREATE|os.O_APPEND) },
		"files":  files,
		"grow":   grow,
		"mkdir":  func(_ *Codex, rest string) (string, error) { return "", os.MkdirAll(rest, 0o755) },
		"symlink": func(_ *Codex, rest string) (string, error) {
			target, name, _ := strings.Cut(rest, " ")
			return "", os.Symlink(target, name)
		},
		"fifo":   func(_ *Codex, rest string) (string, error) { return "", syscall.Mkfifo(rest, 0o600) },
		"socket": socket,
		"remove": func(_ *Codex, rest string) (string, error) { return "", os.RemoveAll(rest) },
		"create": create,

		"env":    env,
		"envs":   func(*Codex, string) (string, error) { return envs(), nil },
		"args":   func(c *Codex, _ string) (string, error) { return strings.Join(c.Args, "\n"), nil },
		"config": func(*Codex, string) (string, error) { return readFile(filepath.Join(os.Getenv(home), "config.toml")) },
		"read":   func(_ *Codex, rest string) (string, error) { return readFile(rest) },
		"stat":   stat,
		"status": status,
		"limits": func(*Codex, string) (string, error) { return readFile("/proc/self/limits") },
		"mounts": func(*Codex, string) (string, error) { return readFile("/proc/self/mounts") },
		"run":    run,

		"connect":    connect,
		"listen":     listen,
		"udp":        udp,
		"lookup":     lookup,
		"get":        get,
		"respond":    respond,
		"interfaces": interfaces,
	}
}

// maxReport bounds what is reported of a file or an answer.
const maxReport = 1 << 20

// Child is the argument that makes the program sleep: what fork starts.
const Child = "exec-child"

func writeLine(w io.Writer, text string) error {
	_, err := io.WriteString(w, text+"\n")
	return err
}

func replay(c *Codex, file string) (string, error) {
	c.silent = true
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = io.Copy(c.out, f)
	return "", err
}

func setUsage(c *Codex, rest string) (string, error) {
	switch {
	case rest == "none":
		c.usage = ""
		return "", nil
	case json.Valid([]byte(rest)) && strings.HasPrefix(rest, "{"):
		c.usage = rest
		return "", nil
	}
	var in, out, cached int64
	if n, err := fmt.Sscan(rest, &in, &out, &cached); n < 2 {
		return "", fmt.Errorf("usage %q: %w", rest, err)
	}
	c.usage = usage(in, out, cached)
	return "", nil
}

func exit(_ *Codex, rest string) (string, error) {
	status, err := strconv.Atoi(rest)
	if err != nil {
		return "", err
	}
	return "", ended{status}
}

func leak(c *Codex, _ string) (string, error) {
	secret := os.Getenv(capability)
	c.line(`{"type":"item.completed","item":{"id":"leak","type":"reasoning","text":` + quote("I hold "+secret) + `}}`)
	text := "the capability is " + secret + "."
	c.final = &text
	return "", writeLine(c.Stderr, "debug: capability="+secret)
}

func sleep(_ *Codex, rest string) (string, error) {
	d, err := time.ParseDuration(rest)
	if err == nil {
		time.Sleep(d)
	}
	return "", err
}

func hang(*Codex, string) (string, error) {
	for {
		time.Sleep(time.Hour)
	}
}

func spin(_ *Codex, rest string) (string, error) {
	d, err := time.ParseDuration(rest)
	if err != nil {
		return "", err
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
	return "", nil
}

func flood(c *Codex, rest string) (string, error) {
	var where string
	var total, line int
	if n, err := fmt.Sscan(rest, &where, &total, &line); n < 2 {
		return "", fmt.Errorf("flood %q: %w", rest, err)
	}
	if line <= 0 {
		line = 1000
	}
	var w io.Writer = c.out
	if where == "stderr" {
		w = c.Stderr
	}
	const chunk = 64 << 10
	row := append(bytes.Repeat([]byte("x"), line-1), '\n')
	if line < chunk {
		row = bytes.Repeat(row, chunk/line)
	}
	for total > 0 {
		n, err := w.Write(row[:min(len(row), total)])
		if err != nil {
			return "", err
		}
		total -= n
	}
	return "", c.out.Flush()
}

func fork(c *Codex, rest string) (string, error) {
	n, err := strconv.Atoi(rest)
	if err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	started := 0
	for range n {
		cmd := exec.Command(self, Child)
		if err := cmd.Start(); err != nil {
			return fmt.Sprintf("%d started, then: %v", started, errors.Unwrap(err)), nil
		}
		started++
	}
	return fmt.Sprintf("%d started", started), nil
}

func memory(_ *Codex, rest string) (string, error) {
	n, err := strconv.Atoi(rest)
	if err != nil {
		return "", err
	}
	held := make([]byte, n)
	for i := 0; i < n; i += os.Getpagesize() {
		held[i] = 1
	}
	return fmt.Sprintf("%d bytes", len(held)), nil
}

func writeFile(_ *Codex, rest string) (string, error) {
	name, size, err := nameAndNumber(rest)
	if err != nil {
		return "", err
	}
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return "", zeros(f, size)
}

func files(_ *Codex, rest string) (string, error) {
	var dir string
	var n, size int
	if _, err := fmt.Sscan(rest, &dir, &n, &size); err != nil {
		return "", fmt.Errorf("files %q: %w", rest, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%06d", i)), make([]byte, size), 0o644); err != nil {
			return "", err
		}
	}
	return "", nil
}

func grow(_ *Codex, rest string) (string, error) {
	var name, pause string
	var step int
	if _, err := fmt.Sscan(rest, &name, &step, &pause); err != nil {
		return "", fmt.Errorf("grow %q: %w", rest, err)
	}
	every, err := time.ParseDuration(pause)
	if err != nil {
		return "", err
	}
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for {
		if err := zeros(f, step); err != nil {
			return "", err
		}
		time.Sleep(every)
	}
}

func zeros(f *os.File, size int) error {
	chunk := make([]byte, min(size, 1<<20))
	for size > 0 {
		n, err := f.Write(chunk[:min(size, len(chunk))])
		if err != nil {
			return err
		}
		size -= n
	}
	return nil
}

func addText(rest string, how int) error {
	name, text, _ := strings.Cut(rest, " ")
	f, err := os.OpenFile(name, how|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(writeLine(f, text), f.Close())
}

func socket(_ *Codex, rest string) (string, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		return "", err
	}
	return "", errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: rest}), syscall.Close(fd))
}

func create(_ *Codex, rest string) (string, error) {
	f, err := os.OpenFile(rest, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return "", err
	}
	return "ok", f.Close()
}

func env(_ *Codex, rest string) (string, error) {
	if value, ok := os.LookupEnv(rest); ok {
		return "set " + value, nil
	}
	return "unset", nil
}

func envs() string {
	var names []string
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func readFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxReport))
	if err == nil && len(data) == 0 {
		return "(empty)", nil
	}
	return string(data), err
}

func stat(_ *Codex, rest string) (string, error) {
	info, err := os.Lstat(rest)
	if err != nil {
		return "", err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Mode().String(), nil
	}
	return fmt.Sprintf("%v uid=%d gid=%d", info.Mode(), sys.Uid, sys.Gid), nil
}

func status(*Codex, string) (string, error) {
	text, err := readFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	var kept []string
	for _, row := range strings.Split(text, "\n") {
		name, value, _ := strings.Cut(row, ":")
		switch name {
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp":
			kept = append(kept, name+"="+strings.TrimSpace(value))
		}
	}
	kept = append(kept, fmt.Sprintf("uid=%d gid=%d", os.Getuid(), os.Getgid()))
	return strings.Join(kept, " "), nil
}

func run(_ *Codex, rest string) (string, error) {
	args := strings.Fields(rest)
	if len(args) == 0 {
		return "", errors.New("run what?")
	}
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	said := strings.TrimSpace(string(out[:min(len(out), maxReport)]))
	if err != nil {
		said += " (" + err.Error() + ")"
	}
	if said == "" {
		said = "(nothing)"
	}
	return said, nil
}

func nameAndNumber(rest string) (string, int, error) {
	var name string
	var n int
	if _, err := fmt.Sscan(rest, &name, &n); err != nil {
		return "", 0, fmt.Errorf("want a name and a number, got %q: %w", rest, err)
	}
	return name, n, nil
}
