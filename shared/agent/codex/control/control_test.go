package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"drawbridge/shared/agent/codex/control"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a control socket in this process.
type server struct {
	socket string

	mu      sync.Mutex
	methods []string
}

// serve starts one. answer gives the frames for a request; nil closes the connection.
func serve(t *testing.T, answer func(id int64, method string, params map[string]any) []string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl") // short: a socket's name holds 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &server{socket: filepath.Join(dir, "s")}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conns.Add(1)
		defer conns.Done()
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		for {
			_, data, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			var req struct {
				ID     int64
				Method string
				Params map[string]any
			}
			if err := json.Unmarshal(data, &req); err != nil {
				return
			}
			s.mu.Lock()
			s.methods = append(s.methods, req.Method)
			s.mu.Unlock()
			switch req.Method {
			case "initialized":
				continue
			case "initialize":
				_ = conn.Write(r.Context(), websocket.MessageText, []byte(fmt.Sprintf(`{"id":%d,"result":{"userAgent":"x"}}`, req.ID)))
				continue
			}
			frames := answer(req.ID, req.Method, req.Params)
			if frames == nil {
				return
			}
			for _, f := range frames {
				kind := websocket.MessageText
				if strings.HasPrefix(f, "\x00") {
					kind = websocket.MessageBinary
				}
				if conn.Write(r.Context(), kind, []byte(f)) != nil {
					return
				}
			}
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Close()
		<-done
		conns.Wait()
		os.RemoveAll(dir)
	})
	return s
}

func result(id int64, v string) string { return fmt.Sprintf(`{"id":%d,"result":%s}`, id, v) }

func dial(t *testing.T, s *server) *control.Client {
	t.Helper()
	c, err := control.Dial(t.Context(), s.socket, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

const thread = "01a22d4b-097a-7861-b15d-c60dc04fc688"

func TestClient(t *testing.T) {
	notice := `{"method":"thread/status/changed","params":{"threadId":"x","status":{"type":"active","activeFlags":["waitingOnApproval"]}}}`
	s := serve(t, func(id int64, method string, params map[string]any) []string {
		switch method {
		case "thread/loaded/list":
			if params["cursor"] == "next" {
				return []string{notice, result(id, `{"data":["c"],"nextCursor":null}`)}
			}
			return []string{result(id+100, `{"data":["late answer to another call"]}`), result(id, `{"data":["a","b"],"nextCursor":"next"}`)}
		case "thread/read":
			if params["includeTurns"] != false {
				return []string{result(id, `{"thread":null}`)}
			}
			return []string{result(id, fmt.Sprintf(`{"thread":{"id":%q,"ephemeral":true,"path":"/p","status":{"type":"active","activeFlags":["waitingOnApproval"]},"more":1}}`, params["threadId"]))}
		case "mcpServerStatus/list":
			return []string{notice, result(id, `{"data":[{"name":"other","httpOrigin":"http://127.0.0.1:1"},{"name":"codex_tui","httpOrigin":"http://127.0.0.1:36531"}]}`)}
		}
		return []string{fmt.Sprintf(`{"id":%d,"error":{"code":-32600,"message":"secret"}}`, id)}
	})
	c := dial(t, s)
	got, err := c.Loaded(t.Context())
	if diff := cmp.Diff([]string{"a", "b", "c"}, got); diff != "" || err != nil {
		t.Errorf("loaded: %v %s", err, diff)
	}
	status, err := c.Status(t.Context(), thread)
	if diff := cmp.Diff(control.Status{Type: "active", Flags: []string{"waitingOnApproval"}, Ephemeral: true, Path: "/p"}, status); diff != "" || err != nil {
		t.Errorf("status: %v %s", err, diff)
	}
	want, many := map[string]int{}, []string{}
	for i := range 150 { // more than travel together
		many = append(many, fmt.Sprint("t", i))
		want[many[i]] = 36531
	}
	ports, err := c.Ports(t.Context(), many)
	if diff := cmp.Diff(want, ports); diff != "" || err != nil {
		t.Errorf("ports: %v %s", err, diff)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	allowed := map[string]bool{"initialize": true, "initialized": true, "thread/loaded/list": true, "thread/read": true, "mcpServerStatus/list": true}
	for _, m := range s.methods {
		if !allowed[m] {
			t.Errorf("called %s", m)
		}
	}
}

func TestClient_Faults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer func(id int64) []string
		want   error
	}{
		{"not JSON", func(int64) []string { return []string{"hello"} }, control.ErrProtocol},
		{"an array", func(int64) []string { return []string{"[1]"} }, control.ErrProtocol},
		{"binary", func(id int64) []string { return []string{"\x00" + result(id, `{"data":[]}`)} }, control.ErrProtocol},
		{"no result", func(id int64) []string { return []string{fmt.Sprintf(`{"id":%d}`, id)} }, control.ErrProtocol},
		{"null", func(id int64) []string { return []string{result(id, "null")} }, control.ErrProtocol},
		{"another shape", func(id int64) []string { return []string{result(id, `{"data":"x"}`)} }, control.ErrProtocol},
		{"another host", func(id int64) []string {
			return []string{result(id, `{"data":[{"name":"codex_tui","httpOrigin":"http://10.0.0.1:80"}]}`)}
		}, control.ErrProtocol},
		{"a path behind the port", func(id int64) []string {
			return []string{result(id, `{"data":[{"name":"codex_tui","httpOrigin":"http://127.0.0.1:80/x"}]}`)}
		}, control.ErrProtocol},
		{"port 0", func(id int64) []string {
			return []string{result(id, `{"data":[{"name":"codex_tui","httpOrigin":"http://127.0.0.1:0"}]}`)}
		}, control.ErrProtocol},
		{"two of one name", func(id int64) []string {
			return []string{result(id, `{"data":[{"name":"codex_tui","httpOrigin":"http://127.0.0.1:80"},{"name":"codex_tui","httpOrigin":"http://127.0.0.1:81"}]}`)}
		}, control.ErrProtocol},
		{"broadcasts without end", func(int64) []string {
			return strings.Split(strings.Repeat(`{"method":"x"}`+"\n", 300), "\n")[:300]
		}, control.ErrProtocol},
		{"silence", func(int64) []string { return []string{} }, context.DeadlineExceeded},
		{"a frame over 1 MiB", func(id int64) []string {
			return []string{result(id, `{"data":[],"x":"`+strings.Repeat("x", control.MaxFrame)+`"}`)}
		}, nil},
		{"closed", func(int64) []string { return nil }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dial(t, serve(t, func(id int64, _ string, _ map[string]any) []string { return tc.answer(id) }))
			begin := time.Now()
			ports, err := c.Ports(t.Context(), []string{thread})
			if err == nil || ports != nil || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Errorf("%v %v, want %v", ports, err, tc.want)
			}
			if d := time.Since(begin); d > 3*control.CallTimeout {
				t.Errorf("took %v", d)
			}
		})
	}
	t.Run("an error of the daemon", func(t *testing.T) {
		c := dial(t, serve(t, func(id int64, _ string, _ map[string]any) []string {
			return []string{fmt.Sprintf(`{"id":%d,"error":{"code":-32600,"message":"secret words"}}`, id)}
		}))
		_, err := c.Status(t.Context(), thread)
		var remote *control.RemoteError
		if !errors.As(err, &remote) || remote.Code != -32600 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v", err)
		}
	})
	t.Run("a hidden thread", func(t *testing.T) {
		c := dial(t, serve(t, func(id int64, _ string, _ map[string]any) []string { return []string{result(id, `{"data":[]}`)} }))
		if ports, err := c.Ports(t.Context(), []string{thread}); len(ports) != 0 || err != nil {
			t.Errorf("%v %v", ports, err)
		}
	})
	t.Run("status of another thread", func(t *testing.T) {
		c := dial(t, serve(t, func(id int64, _ string, _ map[string]any) []string {
			return []string{result(id, `{"thread":{"id":"other","status":{"type":"idle"}}}`)}
		}))
		if _, err := c.Status(t.Context(), thread); !errors.Is(err, control.ErrProtocol) {
			t.Errorf("%v", err)
		}
	})
	t.Run("pages without end", func(t *testing.T) {
		c := dial(t, serve(t, func(id int64, _ string, _ map[string]any) []string {
			return []string{result(id, `{"data":["a"],"nextCursor":"a"}`)}
		}))
		if _, err := c.Loaded(t.Context()); !errors.Is(err, control.ErrProtocol) {
			t.Errorf("%v", err)
		}
	})
}

func TestDial_Refusals(t *testing.T) {
	s := serve(t, func(int64, string, map[string]any) []string { return nil })
	if _, err := control.Dial(t.Context(), s.socket, os.Getpid()+1); !errors.Is(err, control.ErrPeer) {
		t.Errorf("served by another process: %v", err)
	}
	if _, err := control.Dial(t.Context(), s.socket+"x", 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	// A link with a name longer than a socket may have.
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Symlink(s.socket, long); err != nil {
		t.Fatal(err)
	}
	c, err := control.Dial(t.Context(), long, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	// Somebody who accepts and says nothing.
	l, err := net.Listen("unix", filepath.Join(filepath.Dir(s.socket), "mute"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	begin := time.Now()
	if _, err := control.Dial(t.Context(), l.Addr().String(), 0); err == nil || time.Since(begin) > 3*control.CallTimeout {
		t.Errorf("mute: %v after %v", err, time.Since(begin))
	}
}

func TestListeners(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got, err := control.Listeners()
	if err != nil {
		t.Fatal(err)
	}
	inode := got[l.Addr().(*net.TCPAddr).Port]
	if inode == 0 {
		t.Fatal("our own listener was not found")
	}
	if held, err := control.Holds(os.Getpid(), inode); !held || err != nil {
		t.Errorf("held %v, %v", held, err)
	}
	if held, err := control.Holds(os.Getppid(), inode); held || err != nil {
		t.Errorf("held by the parent: %v, %v", held, err)
	}
	if held, err := control.Holds(os.Getpid(), 1); held || err != nil {
		t.Errorf("another inode: %v, %v", held, err)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"id":7,"result":{"data":[{"name":"codex_tui","httpOrigin":"http://127.0.0.1:1"}]}}`))
	f.Add([]byte(`{"id":7,"error":{"code":-1}}`))
	f.Add([]byte(`{"id":"7","result":{}}`))
	f.Add([]byte(`{"method":"x","id":7}`))
	f.Add([]byte(`{"id":7,"result":null}`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got struct{ Data []struct{ Name string } }
		id, err := control.Answer(data, "m", func(id int64) any {
			if id == 7 {
				return &got
			}
			return nil
		})
		if id != 0 && id != 7 {
			t.Errorf("%q answers %d", data, id)
		}
		if id == 0 && err == nil && got.Data != nil {
			t.Errorf("%q was taken for an answer", data)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("error quotes the frame: %v", err)
		}
	})
}

func FuzzListeners(f *testing.F) {
	f.Add("  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:8EB3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 73278 1 000 100 0 0 10 0\n")
	f.Add("0: 0100007F:FFFFF 0 0A 0 0 0 0 0 5 0\n")
	f.Add("\n\n")
	f.Fuzz(func(t *testing.T, table string) {
		got, err := control.ParseListeners(strings.NewReader(table))
		if err != nil {
			return
		}
		for port, inode := range got {
			if port < 0 || port > 65535 || inode == 0 {
				t.Errorf("%d %d", port, inode)
			}
		}
	})
}

func FuzzOrigin(f *testing.F) {
	for _, s := range []string{"http://127.0.0.1:36531", "http://127.0.0.1:036531", "http://127.0.0.1:1@x", "https://127.0.0.1:1", "http://localhost:1", "http://127.0.0.1:65536", "http://[::1]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, origin string) {
		port, err := control.LoopbackPort(origin)
		if err == nil && origin != fmt.Sprintf("http://127.0.0.1:%d", port) {
			t.Errorf("%q = %d", origin, port)
		}
	})
}
