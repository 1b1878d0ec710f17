package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// lookTime bounds every try at something outside.
const lookTime = 3 * time.Second

// reply writes JSON.
func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// outcome answers what became of a try.
func outcome(w http.ResponseWriter, value any, err error) {
	if err != nil {
		reply(w, map[string]any{"ok": false, "error": err.Error()})
		return
	}
	reply(w, map[string]any{"ok": true, "value": value})
}

// environment tells all variables.
func environment(w http.ResponseWriter, _ *http.Request) {
	all := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		all[name] = value
	}
	reply(w, all)
}

// process tells who the harness is, and which processes and descriptors it sees.
func process(w http.ResponseWriter, _ *http.Request) {
	groups, _ := os.Getgroups()
	dir, _ := os.Getwd()
	text, _ := os.ReadFile("/proc/self/status")
	state := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			state[name] = strings.TrimSpace(value)
		}
	}
	network, _ := os.Readlink("/proc/self/ns/net")
	reply(w, map[string]any{
		"pid": os.Getpid(), "ppid": os.Getppid(), "uid": os.Getuid(), "gid": os.Getgid(), "groups": groups, "dir": dir,
		"no_new_privs": state["NoNewPrivs"], "capabilities": state["CapEff"], "network": network,
		"processes": names("/proc", true), "descriptors": names("/proc/self/fd", true),
	})
}

// names lists a directory, of /proc only what has a number.
func names(dir string, numbers bool) []string {
	entries, _ := os.ReadDir(dir)
	out := []string{}
	for _, e := range entries {
		if !numbers || strings.Trim(e.Name(), "0123456789") == "" {
			out = append(out, e.Name())
		}
	}
	return out
}

// list lists ?path=.
func list(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if _, err := os.ReadDir(path); err != nil {
		outcome(w, nil, err)
		return
	}
	outcome(w, names(path, false), nil)
}

// read reads ?path=, 64 KiB at most.
func read(w http.ResponseWriter, r *http.Request) {
	f, err := os.Open(r.URL.Query().Get("path"))
	if err != nil {
		outcome(w, nil, err)
		return
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64<<10))
	outcome(w, string(data), err)
}

// write writes the body to ?path=.
func write(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = os.WriteFile(r.URL.Query().Get("path"), data, 0o600)
	}
	outcome(w, len(data), err)
}

// dial connects to ?address= over ?network= and tells what it read of ?send=.
func dial(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	network := q.Get("network")
	if network == "" {
		network = "tcp"
	}
	c, err := net.DialTimeout(network, q.Get("address"), lookTime)
	if err != nil {
		outcome(w, nil, err)
		return
	}
	defer c.Close()
	var got []byte
	if send := q.Get("send"); send != "" {
		_ = c.SetDeadline(time.Now().Add(lookTime))
		if _, err = io.WriteString(c, send); err == nil {
			buf := make([]byte, 4096)
			var n int
			n, err = c.Read(buf)
			got = buf[:n]
		}
	}
	outcome(w, string(got), err)
}

// resolve looks ?name= up.
func resolve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookTime)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, r.URL.Query().Get("name"))
	outcome(w, addresses, err)
}

// fetch gets ?url= the way a program does: through the proxy of the environment.
func fetch(w http.ResponseWriter, r *http.Request) {
	client := &http.Client{Timeout: lookTime, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}
	target, err := url.Parse(r.URL.Query().Get("url"))
	if err != nil {
		outcome(w, nil, err)
		return
	}
	resp, err := client.Get(target.String())
	if err != nil {
		outcome(w, nil, err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	outcome(w, map[string]any{"status": resp.StatusCode, "body": string(body)}, err)
}

// drain connects to ?address=, through the HTTP proxy ?proxy= when there is one, reads
// to the end and tells how many bytes came, and how long they took.
func drain(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	first := q.Get("proxy")
	if first == "" {
		first = q.Get("address")
	}
	begin := time.Now()
	c, err := net.DialTimeout("tcp", first, lookTime)
	if err != nil {
		outcome(w, nil, err)
		return
	}
	defer c.Close()
	in := bufio.NewReader(c)
	if q.Get("proxy") != "" {
		if _, err := fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", q.Get("address")); err != nil {
			outcome(w, nil, err)
			return
		}
		resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
		if err == nil && resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
		if err != nil {
			outcome(w, nil, err)
			return
		}
	}
	n, err := io.Copy(io.Discard, in)
	outcome(w, map[string]any{"bytes": n, "ns": time.Since(begin).Nanoseconds()}, err)
}

// signalTo sends ?signal= to ?pid=, one process.
func signalTo(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	pid := number(q.Get("pid"), 0)
	if pid <= 0 {
		outcome(w, nil, syscall.EINVAL)
		return
	}
	outcome(w, nil, syscall.Kill(pid, syscall.Signal(number(q.Get("signal"), 0))))
}

// trace tries to attach to ?pid=, and lets go again.
func trace(w http.ResponseWriter, r *http.Request) {
	pid := number(r.URL.Query().Get("pid"), -1)
	runtime.LockOSThread() // a thread attaches, and only it can let go
	defer runtime.UnlockOSThread()
	err := syscall.PtraceAttach(pid)
	if err == nil {
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		_ = syscall.PtraceDetach(pid)
	}
	outcome(w, nil, err)
}
