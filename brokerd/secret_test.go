package main

import (
	"bytes"
	"database/sql"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"drawbridge/shared/store"
)

// Proves broker 18.28: after a run with everything in it, neither the Store's files,
// the logs, the metrics, the evidence nor any answer holds the credential or the
// capability. The provider echoes both wherever it can.
func TestSecrets_Nowhere(t *testing.T) {
	w := newWorld(t)
	w.script(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Request-Id", r.Header.Get("Authorization"))
		rw.Header().Set("Set-Cookie", secret)
		io.WriteString(rw, "data: {\"echo\":\""+secret+"\"}\n\n")
	})
	metrics := freePort(t)
	d := w.serve("-metrics", metrics)
	g := w.lend(w.registered("r", true))
	var said bytes.Buffer
	keep := func(resp *http.Response, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		resp.Header.Write(&said)
		if _, err := io.Copy(&said, resp.Body); err != nil {
			t.Fatal(err)
		}
	}
	keep(g.send(t.Context(), body))
	if !strings.Contains(said.String(), "[redacted-host-credential]") {
		t.Errorf("the echo is not there to be redacted: %s", said.String())
	}
	keep(g.send(t.Context(), `{"model":"other"}`))
	keep(g.send(t.Context(), `{`))
	keep(http.Get("http://" + metrics + "/metrics"))
	if text := said.String(); !strings.Contains(text, `drawbridge_broker_grants{state="active"} 1`) || !strings.Contains(text, "drawbridge_broker_redactions_total 1") {
		t.Errorf("metrics: %s", text)
	}
	wrong := g
	wrong.capability += "0"
	wrong.post401(t)
	bad := w.write("bad.json", `{"OPENAI_API_KEY":"`+secret+` with a space"}`)
	refused := w.ask(func(n *store.NewGrant) { n.CredentialRef = bad })
	refused.becomes(store.GrantRefused)
	g.outcomes()
	evidence, _ := w.brokerd("evidence", g.ID)
	status, _ := w.brokerd("status", "-json")
	g.close()
	d.signal(syscall.SIGTERM).exits(0)

	look := func(where string, data []byte) {
		t.Helper()
		for name, needle := range map[string]string{"the credential": secret, "the capability": g.capability, "the refused capability": refused.capability} {
			if bytes.Contains(data, []byte(needle)) {
				t.Errorf("%s holds %s", where, name)
			}
		}
	}
	look("an answer", said.Bytes())
	look("stderr", d.out.Bytes())
	look("evidence", []byte(evidence))
	look("status", []byte(status))
	for _, private := range []string{w.home, "auth.json"} { // the evidence and the status name no place either
		if strings.Contains(evidence+status, private) {
			t.Errorf("%s is shown", private)
		}
	}
	files := 0
	err := filepath.WalkDir(w.home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path == w.auth || path == bad {
			return err
		}
		data, err := os.ReadFile(path)
		files++
		look(path, data)
		return err
	})
	if err != nil || files < 4 {
		t.Errorf("looked at %d files, %v", files, err)
	}
}

// freePort is an address of this machine where nothing listens at this moment.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Proves broker 18.26 for a row of the Store and for the credential file: an origin
// that somebody writes into the Store changes nothing for a grant that is served, and
// the next brokerd closes it; one in the file is not read.
func TestSecrets_OriginOfTheStore(t *testing.T) {
	w := newWorld(t)
	w.write("auth.json", `{"OPENAI_API_KEY":"`+secret+`","base_url":"http://192.0.2.1","upstream_origin":"http://192.0.2.1"}`)
	d := w.serve()
	g := w.lend(nil)
	g.post(200)
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("UPDATE broker_budgets SET upstream_origin = 'http://192.0.2.1'"); err != nil {
		t.Fatal(err)
	}
	g.post(200)
	for _, row := range g.rows() {
		if strings.Contains(row["upstream_origin"].(string), "192.0.2.1") {
			t.Errorf("a request went to %v", row["upstream_origin"])
		}
	}
	d.signal(syscall.SIGKILL).exits(-1)
	w.serve()
	if end := g.becomes(store.GrantClosed); end.CloseReason != "origin_not_allowed" {
		t.Errorf("got %q", end.CloseReason)
	}
	g.post401(t)
	if w.seen() != 2 {
		t.Errorf("the provider saw %d", w.seen())
	}
}
