package gate_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"drawbridge/stationd/internal/gate"
)

// pipes is a listener in memory, whose waits count in a test's own time.
type pipes struct {
	conns chan net.Conn
	shut  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), shut: make(chan struct{})} }

var pipeAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.shut:
		return nil, net.ErrClosed
	}
}
func (l *pipes) Close() error   { l.once.Do(func() { close(l.shut) }); return nil }
func (l *pipes) Addr() net.Addr { return pipeAddr }

func (l *pipes) dial(context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- addressed{far}:
		return near, nil
	case <-l.shut:
		return nil, net.ErrClosed
	}
}

// addressed is a pipe that looks like a loopback connection.
type addressed struct{ net.Conn }

func (addressed) LocalAddr() net.Addr  { return pipeAddr }
func (addressed) RemoteAddr() net.Addr { return pipeAddr }

// inOwnTime runs a test in which waiting takes no time.
func inOwnTime(t *testing.T, name string, f func(*world), settings ...setting) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			front, back := newPipes(), newPipes()
			f(newWorldOn(t, front, back, front.dial, back.dial, settings...))
		})
	})
}

// took fails unless just this time has passed.
func (w *world) took(begin time.Time, want time.Duration) {
	w.Helper()
	if got := time.Since(begin); got < want || got > want+time.Second {
		w.Errorf("it took %v, want %v", got, want)
	}
}

// Proves station 17.S3: a silent stream gets a comment every fifteen seconds, never
// inside an event.
func TestStream_Heartbeat(t *testing.T) {
	inOwnTime(t, "", func(w *world) {
		source := newEvents()
		w.daemon.handle(source.ServeHTTP)
		s := w.open(w.request("GET", "/events", nil))
		begin := time.Now()
		source.send(w, "data: one\n\ndata: t")
		if got := s.event(); got != "data: one\n\n" {
			w.Fatalf("got %q", got)
		}
		for i := range 3 {
			if got := s.event(); got != ": hb\n\n" {
				w.Fatalf("got %q", got)
			}
			w.took(begin, time.Duration(i+1)*15*time.Second)
		}
		before := w.route.Counts()
		if before.Activity.After(begin.Add(time.Second)) || before.BytesOut != int64(len("data: one\n\n")) {
			w.Errorf("a heartbeat is counted: %+v", before)
		}
		source.send(w, "wo\n\n")
		if got := s.event(); got != "data: two\n\n" {
			w.Errorf("got %q", got)
		}
	})
}

// Proves station 17.T11: an open stream ends with its ticket.
func TestStream_Expiry(t *testing.T) {
	inOwnTime(t, "", func(w *world) {
		source := newEvents()
		w.daemon.handle(source.ServeHTTP)
		w.ticket = w.issue(gate.Ticket{ID: "tkt_short", ExpiresAt: time.Now().Add(10 * time.Second)})
		begin := time.Now()
		s := w.open(w.request("GET", "/events", nil))
		if got := s.rest(); got != last("ready", "ticket_expired", "false") {
			w.Errorf("got %q", got)
		}
		w.took(begin, 10*time.Second)
		<-source.gone
	})
}

// Proves station 17.S6: a client that does not read is dropped after the write
// deadline; others get their events.
func TestStream_DoesNotRead(t *testing.T) {
	inOwnTime(t, "", func(w *world) {
		sources := make(chan *events, 2)
		w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) { (<-sources).ServeHTTP(rw, r) })
		deaf, fine := newEvents(), newEvents()
		sources <- deaf
		c, err := w.dial(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET "+gate.BridgePath(theStation, 1)+"/events HTTP/1.1\r\n"+w.credentials()+"\r\n")
		head := bufio.NewReaderSize(c, 16)
		for {
			line, err := head.ReadString('\n')
			if err != nil {
				w.Fatal(err)
			}
			if line == "\r\n" {
				break
			}
		}
		sources <- fine
		s := w.open(w.request("GET", "/events", nil))
		begin := time.Now()
		deaf.send(w, "data: "+strings.Repeat("x", 10000)+"\n\n")
		fine.send(w, "data: on\n\n")
		if got := s.event(); got != "data: on\n\n" {
			w.Errorf("got %q", got)
		}
		<-deaf.gone
		w.took(begin, 15*time.Second)
		fine.send(w, "data: still on\n\n")
		for got := s.event(); got != "data: still on\n\n"; got = s.event() {
			if got != ": hb\n\n" {
				w.Fatalf("got %q", got)
			}
		}
	})
}

// Proves station 17.S4: a client that does not read does not delay the stop.
func TestStream_StopDoesNotRead(t *testing.T) {
	inOwnTime(t, "", func(w *world) {
		source := newEvents()
		w.daemon.handle(source.ServeHTTP)
		c, err := w.dial(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET "+gate.BridgePath(theStation, 1)+"/events HTTP/1.1\r\n"+w.credentials()+"\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			w.Fatal(err)
		}
		defer resp.Body.Close()
		begin := time.Now()
		w.stop("operator_stop")
		w.took(begin, 0)
		<-source.gone
	})
}

// Proves station 17.P11: the limits of time.
func TestWait(t *testing.T) {
	silent := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	base := gate.BridgePath(theStation, 1)

	inOwnTime(t, "a daemon that does not answer", func(w *world) {
		w.daemon.handle(silent)
		begin := time.Now()
		w.refused(w.get("/v1"), http.StatusGatewayTimeout, "daemon_timeout")
		w.took(begin, 120*time.Second)
		w.daemon.handle(nil)
		if a := w.get("/v1"); a.status != http.StatusOK {
			w.Errorf("afterwards: %d %s", a.status, a.body)
		}
	})
	inOwnTime(t, "a daemon that takes longer, as its bridge allows", func(w *world) {
		w.daemon.handle(func(http.ResponseWriter, *http.Request) { time.Sleep(500 * time.Second) })
		if a := w.get("/v1"); a.status != http.StatusOK {
			w.Errorf("%d %s", a.status, a.body)
		}
	}, func(_ *gate.Options, b *gate.Bridge) { b.Limits.HeaderWait = 600 * time.Second })
	inOwnTime(t, "an answer that stalls", func(w *world) {
		w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(rw, "beg")
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		})
		begin := time.Now()
		if a, err := w.try(w.request("GET", "/v1", nil)); err == nil {
			w.Errorf("a whole answer: %+v", a)
		}
		w.took(begin, 120*time.Second)
	})
	inOwnTime(t, "a body that stalls", func(w *world) {
		w.daemon.handle(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		begin := time.Now()
		head := "POST " + base + "/v1 HTTP/1.1\r\n" + w.credentials() + "Content-Length: 100\r\n\r\nonly this"
		status, all := w.slow(head)
		if status != http.StatusGatewayTimeout || !strings.Contains(all, "body_timeout") {
			w.Errorf("answer %q", all)
		}
		w.took(begin, 30*time.Second)
	})
	inOwnTime(t, "a body that comes slowly", func(w *world) {
		w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) { _, _ = io.Copy(rw, r.Body) })
		r := w.request("POST", "/v1", &drip{left: 5})
		r.ContentLength = 5
		if a := w.send(r); a.status != http.StatusOK || a.body != "xxxxx" {
			w.Errorf("%+v", a)
		}
		time.Sleep(40 * time.Second) // the deadline of a body is not that of the connection
		if a := w.get("/v1"); a.status != http.StatusOK {
			w.Errorf("afterwards: %+v", a)
		}
	})
	inOwnTime(t, "a body that never comes, to a stranger", func(w *world) {
		begin := time.Now()
		status, all := w.slow("POST " + base + "/v1 HTTP/1.1\r\nHost: " + w.addr + "\r\nContent-Length: 100\r\n\r\n")
		if status != http.StatusUnauthorized {
			w.Errorf("answer %q", all)
		}
		w.took(begin, 0)
	})
	inOwnTime(t, "a body that nobody wants", func(w *world) {
		begin := time.Now()
		c, err := w.dial(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "POST "+base+"/v1 HTTP/1.1\r\nHost: "+w.addr+"\r\nContent-Length: 100\r\n\r\n")
		_, _ = io.ReadAll(c) // the answer, and the end of the connection
		w.took(begin, 30*time.Second)
	})
	early := "POST " + base + "/v1 HTTP/1.1\r\n%sContent-Length: 100000\r\n\r\nbeginning"
	inOwnTime(t, "an answer before the end of the body", func(w *world) {
		w.daemon.handle(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Connection", "close") // or the daemon waits for the body itself
			rw.WriteHeader(http.StatusTeapot)
		})
		begin := time.Now()
		if all := w.raw(fmt.Sprintf(early, w.credentials())); !strings.HasPrefix(all, "HTTP/1.1 418 ") {
			w.Errorf("answer %q", all)
		}
		w.took(begin, 0) // the end of the connection, too
	})
	inOwnTime(t, "an answer before the end of a body that stalls", func(w *world) {
		w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, len("beginning")))
			time.Sleep(time.Second) // now the gate waits for the next piece
			rw.Header().Set("Connection", "close")
			rw.WriteHeader(http.StatusTeapot)
		})
		c, err := w.dial(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		defer c.Close()
		begin := time.Now()
		_ = c.SetReadDeadline(begin.Add(time.Hour))
		_, _ = fmt.Fprintf(c, early, strings.Replace(w.credentials(), "Connection: close\r\n", "", 1))
		if all, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 418 ") {
			w.Errorf("answer %q, then %v", all, err)
		}
		w.took(begin, 30*time.Second)
	})
	inOwnTime(t, "a long answer before the end of the body", func(w *world) {
		hold := make(chan struct{})
		defer close(hold)
		w.daemon.handle(func(rw http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(rw)
			_ = control.EnableFullDuplex()
			_, _ = io.WriteString(rw, "beg")
			_ = control.Flush()
			<-hold
		})
		c, err := w.dial(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		defer c.Close()
		begin := time.Now()
		_, _ = fmt.Fprintf(c, early, strings.Replace(w.credentials(), "Connection: close\r\n", "", 1))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			w.Fatal(err)
		}
		defer resp.Body.Close()
		w.took(begin, 0)
	})
	inOwnTime(t, "headers that never end", func(w *world) {
		c, err := w.dial(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		defer c.Close()
		begin := time.Now()
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n")
		_, _ = io.ReadAll(c)
		w.took(begin, 10*time.Second)
	})
	inOwnTime(t, "a right that cannot be proven any more", func(w *world) {
		source := newEvents()
		w.daemon.handle(source.ServeHTTP)
		s := w.open(w.request("GET", "/events", nil))
		w.auth.Break(errors.New("the disk is gone"))
		begin := time.Now()
		got := strings.ReplaceAll(s.rest(), ": hb\n\n", "")
		if got != last("ready", "access_unproven", "false") {
			w.Errorf("got %q", got)
		}
		if took := time.Since(begin); took < 15*time.Second || took > 21*time.Second {
			w.Errorf("it took %v", took)
		}
	})
	inOwnTime(t, "a request whose right cannot be proven any more", func(w *world) {
		w.daemon.handle(func(_ http.ResponseWriter, r *http.Request) {
			w.auth.Break(errors.New("the disk is gone"))
			<-r.Context().Done()
		})
		w.refused(w.get("/v1"), http.StatusBadGateway, "gate_unavailable") // it may have had its effect
	})
	inOwnTime(t, "a right that is proven again in time", func(w *world) {
		source := newEvents()
		w.daemon.handle(source.ServeHTTP)
		s := w.open(w.request("GET", "/events", nil))
		w.auth.Break(errors.New("busy"))
		time.Sleep(12 * time.Second)
		w.auth.Break(nil)
		time.Sleep(12 * time.Second)
		source.send(w, "data: on\n\n")
		if got := s.event(); got != ": hb\n\n" {
			w.Errorf("got %q", got)
		}
		if got := s.event(); got != "data: on\n\n" {
			w.Errorf("got %q", got)
		}
	})
}

// Clients that take all the room do not hold up the end.
func TestRun_NoRoom(t *testing.T) {
	inOwnTime(t, "", func(w *world) {
		for range gate.MaxConnections {
			c, err := w.dial(w.Context())
			if err != nil {
				w.Fatal(err)
			}
			defer c.Close()
		}
		begin := time.Now()
		w.shutdown()
		w.took(begin, 3*time.Second)
	})
}

// slow writes the beginning of a request and reads what comes until the gate
// closes.
func (w *world) slow(text string) (status int, all string) {
	w.Helper()
	c, err := w.dial(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, text)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// drip is a body of which a byte comes every twenty seconds.
type drip struct{ left int }

func (d *drip) Read(b []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	d.left--
	time.Sleep(20 * time.Second)
	b[0] = 'x'
	return 1, nil
}
