package access_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
)

// patience is how long a change of rights may take to reach an open stream (station
// §17.T10).
const patience = 5 * time.Second

// bridge is a real gate over the world's Store, with a daemon that streams.
type bridge struct {
	*world
	url    string
	client *http.Client
}

// open opens a stream, with the secret of a principal and a ticket's text.
func (b *bridge) open(secret, ticket string) *http.Response {
	b.t.Helper()
	r, err := http.NewRequest("GET", b.url+"/v1/events", nil)
	b.ok(err)
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set(gate.TicketHeader, ticket)
	answer, err := b.client.Do(r)
	b.ok(err)
	b.t.Cleanup(func() { answer.Body.Close() })
	return answer
}

func newBridge(t testing.TB) *bridge {
	w := newWorld(t)
	daemon := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for {
			if _, err := io.WriteString(rw, "data: tick\n\n"); err != nil || http.NewResponseController(rw).Flush() != nil {
				return
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(daemon.Close)
	l, err := gate.Listen(gate.DefaultListen)
	w.ok(err)
	bell := store.NewDoorbell(w.Store, nil)
	changes, forget := bell.Subscribe()
	t.Cleanup(forget)
	g, err := gate.New(gate.Options{Authorizer: w.access, Listeners: []net.Listener{l}, Changes: changes})
	w.ok(err)
	_, err = g.Open(gate.Bridge{Station: w.station.ID, Attempt: 1, Port: 7070, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", daemon.Listener.Addr().String())
	}})
	w.ok(err)
	run, end := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- bell.Run(run) }()
	go func() { ended <- g.Run(run) }()
	b := &bridge{world: w, url: "http://" + l.Addr().String() + gate.BridgePath(w.station.ID, 1), client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		end()
		for range 2 {
			w.ok(<-ended)
		}
	})
	return b
}

// manager adds a manager and gives the secret and a ticket.
func (b *bridge) manager(name string) (secret, ticket string) {
	b.t.Helper()
	s, digest := gate.NewPrincipalSecret()
	p, err := b.AddPrincipal(ctx, b.main, store.NewPrincipal{Org: store.LocalOrg, Name: name, SecretSHA256: digest})
	b.ok(err)
	b.people[name], b.secrets[name] = p, digest
	b.ok(b.GrantRole(ctx, b.main, b.station.ID, p.ID, store.RoleManager))
	k, sum := gate.NewTicket()
	_, err = b.IssueTicket(ctx, b.main, store.NewTicket{SecretSHA256: sum, Issuer: p.ID, PrincipalID: p.ID, StationID: b.station.ID, Prefix: "/v1"})
	b.ok(err)
	return s.Reveal(), k.Reveal()
}

// absent fails when a file of the Store holds a text.
func (b *bridge) absent(text string) {
	b.t.Helper()
	b.ok(filepath.WalkDir(b.Dir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			b.t.Errorf("%s holds a secret", filepath.Base(path))
		}
		return err
	}))
}

// Proves station 17.T10, 17.T7, 17.T14: through a real gate, a role that is taken away ends that
// person's open stream with access_revoked in time, and the next request; another's
// stream lives until the stop, which ends it and refuses the next request. No
// file of the Store holds a secret or a ticket.
func TestAccess_OpenStreams(t *testing.T) {
	b := newBridge(t)
	mia, miasTicket := b.manager("mia")
	noa, noasTicket := b.manager("noa")
	hers, others := b.open(mia, miasTicket), b.open(noa, noasTicket)
	if hers.StatusCode != http.StatusOK || others.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %d", hers.StatusCode, others.StatusCode)
	}
	theirs := bufio.NewReader(others.Body)
	tick := func() {
		t.Helper()
		if line, err := theirs.ReadString('\n'); err != nil || line != "data: tick\n" && line != "\n" {
			t.Fatalf("the other stream: %q, %v", line, err)
		}
	}
	tick()
	began := time.Now()
	b.ok(b.RevokeRole(ctx, b.main, b.station.ID, b.people["mia"].ID))
	rest, err := io.ReadAll(hers.Body)
	b.ok(err)
	if took := time.Since(began); took > patience || !strings.Contains(string(rest), `"reason":"access_revoked"`) {
		t.Errorf("ended after %s with %.400q", took, rest[max(0, len(rest)-400):])
	}
	if a := b.open(mia, miasTicket); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("her next request: %d", a.StatusCode)
	}
	for range 4 {
		tick()
	}
	began = time.Now()
	b.stop(store.StopOperator)
	last, err := io.ReadAll(theirs)
	b.ok(err)
	if took := time.Since(began); took > patience || !strings.Contains(string(last), `"reason":"operator_stop"`) {
		t.Errorf("ended after %s with %.400q", took, last[max(0, len(last)-400):])
	}
	if a := b.open(noa, noasTicket); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the stop: %d", a.StatusCode)
	}
	for _, text := range []string{mia, miasTicket, noa, noasTicket} {
		raw, err := base64.RawURLEncoding.DecodeString(text[len("dbt_"):])
		b.ok(err)
		b.absent(text)
		b.absent(string(raw))
	}
}
