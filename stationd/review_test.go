package main

// The review checklist of the contract (station §1, C1 to C10), one test a line, on
// the program as it is run: stationd, its shim, a daemon that misbehaves as told.

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/scan"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/evidence"
)

// C1: the daemon binds to loopback, never to a public interface.
func TestReview_C1(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	good := w.start()
	port := w.status(good.StationID).Detail.Port
	addresses, err := net.InterfaceAddrs()
	if err != nil || len(addresses) == 0 {
		t.Fatal(addresses, err)
	}
	for _, a := range addresses {
		ip := a.(*net.IPNet).IP
		if ip.IsLinkLocalUnicast() {
			continue // needs a zone
		}
		if c, err := net.DialTimeout("tcp", net.JoinHostPort(ip.String(), strconv.FormatInt(port, 10)), time.Second); err == nil {
			c.Close()
			t.Errorf("the daemon's port is open on %s", ip)
		}
	}
	if status, body := w.get(w.visitor(good.StationID), good.Bridge.URL+"/health"); status != 200 {
		t.Errorf("through the gate: %d %s", status, body)
	}
	w.must("stop", good.StationID, "-wait")
	if f, text := w.document(good.StationID, 1); f.Loopback.Checks == 0 || len(f.Loopback.Findings) != 0 {
		t.Error(text)
	}
	for _, wide := range [][]string{{"-host", "0.0.0.0"}, {"-also", "[::]:9999"}, {"-children", "fork", "-child-listen", "0.0.0.0:9999"}} {
		var st control.Started
		w.answer(&st, "start", "-f", w.spec(wide...))
		testkit.Eventually(t, limit, func() bool { return w.status(st.StationID).Detail.AttemptState == store.AttemptTerminal }, wide)
		if f, text := w.document(st.StationID, 1); f.Stop.Reason != store.StopLoopback || len(f.Loopback.Findings) == 0 || f.Stop.Cleanup.Result == evidence.CleanupFailed {
			t.Errorf("%v: %s", wide, text)
		}
	}
}

// C2: a downloaded artifact has reviewed integrity metadata, or is never executed.
func TestReview_C2(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	harness := w.path("bin", "testharness")
	artifact := func(a map[string]any) map[string]any {
		return map[string]any{"harness": map[string]any{"name": "testharness", "artifact": a}}
	}
	_, errs, status := w.stationd("start", "-wait", "-f", w.fields(artifact(map[string]any{"path": harness})))
	if status == 0 || !strings.Contains(errs, "[artifact_unpinned]") {
		t.Errorf("nothing proves it: %d %s", status, errs)
	}
	spec := w.fields(artifact(map[string]any{"path": harness, "sha256": strings.Repeat("0", 64)}), "-print", "it was executed")
	_, errs, status = w.stationd("start", "-wait", "-f", spec)
	if status == 0 || !strings.Contains(errs, store.StopIntegrity) {
		t.Errorf("another digest: %d %s", status, errs)
	}
	var all control.StationList
	w.answer(&all, "list")
	if len(all.Stations) != 1 {
		t.Fatalf("%+v", all)
	}
	f, text := w.document(all.Stations[0].StationID, 1)
	if f.Process.PID != 0 || f.Stop.Reason != store.StopIntegrity || f.Logs.Bytes != 0 {
		t.Error(text)
	}
	scan.Secrets{Values: map[string]string{"a mark of the program": "it was executed\n"}}.None(t, w.path("store"), w.path("state"))
}

// C3: a request needs current authorization and a scoped, short-lived ticket.
func TestReview_C3(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	a, b := w.start(), w.start()
	v, other := w.visitor(a.StationID), w.visitor(b.StationID)
	scoped := visitor{v.id, v.secret, strings.TrimSpace(w.must("ticket", a.StationID, "-principal", v.id, "-prefix", "/hea", "-methods", "GET, HEAD"))}
	brief := visitor{v.id, v.secret, strings.TrimSpace(w.must("ticket", a.StationID, "-principal", v.id, "-ttl", "15s"))}
	once := visitor{v.id, v.secret, strings.TrimSpace(w.must("ticket", a.StationID, "-principal", v.id, "-uses", "1"))}
	for what, tc := range map[string]struct {
		who    visitor
		url    string
		status int
	}{
		"whoever may":                     {v, a.Bridge.URL, 200},
		"nobody":                          {visitor{}, a.Bridge.URL, 401},
		"no ticket":                       {visitor{v.id, v.secret, ""}, a.Bridge.URL, 401},
		"no principal":                    {visitor{v.id, "", v.ticket}, a.Bridge.URL, 401},
		"somebody else's ticket":          {visitor{other.id, other.secret, v.ticket}, a.Bridge.URL, 401},
		"a ticket of another station":     {other, a.Bridge.URL, 401},
		"a prefix is of whole segments":   {scoped, a.Bridge.URL, 403},
		"a ticket for one, the first":     {once, a.Bridge.URL, 200},
		"an attempt that never was":       {v, strings.TrimSuffix(a.Bridge.URL, "1") + "7", 401},
		"a ticket that lives 15 s, alive": {brief, a.Bridge.URL, 200},
	} {
		if got, body := w.get(tc.who, tc.url+"/health"); got != tc.status {
			t.Errorf("%s: %d %s", what, got, body)
		}
	}
	if got, body := w.get(once, a.Bridge.URL+"/health"); got != 401 {
		t.Errorf("a ticket for one, again: %d %s", got, body)
	}
	if got, _, _ := w.request("POST", a.Bridge.URL+"/hea", scoped); got != 403 {
		t.Errorf("another method: %d", got)
	}
	if _, _, status := w.stationd("ticket", a.StationID, "-ttl", "16m"); status == 0 {
		t.Error("a ticket of 16 minutes")
	}
	testkit.Eventually(t, limit, func() bool {
		got, body := w.get(brief, a.Bridge.URL+"/health")
		return got == 401 && strings.Contains(body, "ticket_expired")
	}, "after 15 s")
}

// C4: tickets never enter URLs, paths are canonicalized before the scope is checked,
// and only headers of the list reach the daemon.
func TestReview_C4(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	s := w.start()
	v := w.visitor(s.StationID)
	v.ticket = strings.TrimSpace(w.must("ticket", s.StationID, "-principal", v.id, "-prefix", "/headers"))
	base := strings.TrimPrefix(s.Bridge.URL, "http://"+strings.SplitN(s.Bridge.URL, "/", 4)[2])
	for target, want := range map[string]int{
		"/headers": 200, "/headers?ticket=" + v.ticket: 400, "/headers?x=" + v.ticket: 400, "/headers/" + v.ticket: 400, "/headers?TICKET=a": 400, "/headers?bridge-ticket=a": 400,
		"/x/../headers": 200, "/headers/../status": 403, "/headers/..%2fstatus": 400, "/headers/%2e%2e/status": 403, "/headers/%252e%252e/status": 400,
		"/headers/../../../../x": 400, "/headersx": 403, "/Headers": 403, "/headers\\..\\status": 400, "/headers/%c0%ae%c0%ae/status": 400, "/headers;x": 400,
	} {
		if got, _, body := w.ask(v, s.Bridge.URL, base+target); got != want {
			t.Errorf("%s: %d, want %d: %s", target, got, want, body)
		}
	}
	marks := scan.Marks(8)
	if status, _, body := w.ask(v, s.Bridge.URL, base+"/headers", "Cookie: a=b"); status != 421 {
		t.Errorf("a browser at an origin that others share: %d %s", status, body)
	}
	_, _, body := w.ask(v, s.Bridge.URL, base+"/headers", "Host: "+s.Bridge.Host, "Cookie: session="+marks["mark 1"], "X-Forwarded-For: "+marks["mark 2"], "Forwarded: for="+marks["mark 3"],
		"X-Real-Ip: "+marks["mark 4"], "Proxy-Authorization: "+marks["mark 5"], "X-Api-Key: "+marks["mark 6"], "Cf-Access-Jwt-Assertion: "+marks["mark 7"], "X-Unknown: "+marks["mark 8"], "Accept: text/plain")
	if body == "" || !strings.Contains(body, "text/plain") {
		t.Errorf("an allowed header is missing: %s", body)
	}
	for _, f := range (scan.Secrets{Values: marks}).With("ticket", v.ticket).With("secret", v.secret).In("what the daemon saw", []byte(body)) {
		t.Error(f)
	}
}

// C5: a manager who was revoked and a station that was stopped keep no access, not even
// on what is open.
func TestReview_C5(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	s := w.start()
	member, principal, stays := w.visitor(s.StationID), w.visitor(s.StationID), w.visitor(s.StationID)
	streams := map[string]<-chan string{"member": w.stream(member, s.Bridge.URL), "principal": w.stream(principal, s.Bridge.URL), "stays": w.stream(stays, s.Bridge.URL)}
	w.must("member", "revoke", s.StationID, member.id)
	w.must("principal", "revoke", principal.id)
	for _, name := range []string{"member", "principal"} {
		if text := <-streams[name]; !strings.Contains(text, `"reason":"access_revoked","final":false`) {
			t.Errorf("%s: the open stream ended with %.200q", name, text[max(0, len(text)-200):])
		}
	}
	for name, v := range map[string]visitor{"member": member, "principal": principal} {
		if status, body := w.get(v, s.Bridge.URL+"/health"); status != 401 {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if status, body := w.get(stays, s.Bridge.URL+"/health"); status != 200 {
		t.Errorf("whoever stays: %d %s", status, body)
	}
	w.must("stop", s.StationID, "-wait")
	if text := <-streams["stays"]; !strings.Contains(text, `"reason":"operator_stop","final":true`) {
		t.Errorf("the open stream ended with %.200q", text[max(0, len(text)-200):])
	}
	if status, body := w.get(stays, s.Bridge.URL+"/health"); status != 401 && status != 410 {
		t.Errorf("after the stop: %d %s", status, body)
	}
	var next control.Started
	w.answer(&next, "start", "-replace", s.StationID, "-wait")
	for _, url := range []string{s.Bridge.URL, next.Bridge.URL} {
		if status, body := w.get(stays, url+"/health"); status != 401 && status != 410 {
			t.Errorf("the old ticket at %s: %d %s", url, status, body)
		}
	}
}

// C6: a stop closes sessions and kills the daemon with all descendants, whatever they do
// against it.
func TestReview_C6(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	s := w.start("-deaf", "-children", "plain,setsid,fork,stopped,respawn")
	v := w.visitor(s.StationID)
	stream := w.stream(v, s.Bridge.URL)
	shim := w.incarnation(w.status(s.StationID).Detail.ShimPID)
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", shim.PID))
	if err != nil {
		t.Fatal(err)
	}
	inside := func() (pids []string) {
		for _, link := range glob(t, "/proc/[0-9]*/ns/net") {
			if at, err := os.Readlink(link); err == nil && at == space {
				pids = append(pids, strings.Split(link, "/")[2])
			}
		}
		return pids
	}
	testkit.Eventually(t, limit, func() bool { return len(inside()) >= 5 }, "the shim, the daemon and its children")
	begun := time.Now()
	w.must("stop", s.StationID, "-wait")
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("the stop took %s", took)
	}
	if left := inside(); len(left) > 0 || shim.Alive() {
		t.Errorf("left: %v", left)
	}
	if text := <-stream; !strings.Contains(text, "event: station") || !strings.Contains(text, `"final":true`) {
		t.Errorf("the stream ended with %.200q", text[max(0, len(text)-200):])
	}
	f, text := w.document(s.StationID, 1)
	var signals []string
	for _, sig := range f.Stop.SignalPath {
		signals = append(signals, sig.Signal)
	}
	if !slices.Equal(signals, []string{"SIGTERM", "SIGKILL"}) || f.Stop.Cleanup.Result != evidence.CleanupForced || len(f.Stop.Cleanup.Left) != 0 {
		t.Error(text)
	}
	if st := w.status(s.StationID); *st.LeaseState != store.WorkspaceReleased {
		t.Errorf("%+v", st)
	}
}

// C7: credentials, tickets and tokens are redacted from logs, events, artifacts and
// evidence: looked for in every byte that the run wrote or printed, the program's own
// log at its loudest included.
func TestReview_C7(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	variable, token := "value-of-a-secret-variable-0123456789", "gh"+"p_"+strings.Repeat("aB3", 12)
	d := w.launch(false, []string{"MY_SERVICE_TOKEN=" + variable}).told("READY=1")
	var s control.Started
	w.answer(&s, "start", "-wait", "-f", w.fields(map[string]any{
		"daemonAuth": map[string]any{"mode": "env:HARNESS_CODE", "inject": "bearer"},
		"artifacts":  map[string]any{"paths": []string{"out"}},
	}, "-guard", "bearer", "-guard-env", "HARNESS_CODE", "-print-env", "HARNESS_CODE"))
	v := w.visitor(s.StationID)
	var environment map[string]string
	if err := json.Unmarshal([]byte(w.send(v, "GET", s.Bridge.URL+"/environment", "")), &environment); err != nil || len(environment["HARNESS_CODE"]) < 20 {
		t.Fatalf("%v: %v", err, environment)
	}
	secrets := scan.Secrets{Tokens: true}.With("daemon credential", environment["HARNESS_CODE"]).With("ticket", v.ticket).With("principal's secret", v.secret).
		With("secret variable", variable).With("token", token)
	said := 0
	for _, value := range secrets.Values { // whatever a daemon gets hold of, in all the ways it may say so
		quoted, _ := json.Marshal(map[string]string{"note": value})
		for _, text := range []string{
			"it is " + value, "Authorization: Bearer " + value, "Cookie: a=" + value, "https://joe:" + value + "@host.test/x?access_token=" + value, string(quoted),
			"run --token " + value, "/x?q=" + url.QueryEscape(value), value,
		} {
			w.send(v, "POST", s.Bridge.URL+"/say", text[:len(text)-10]) // in two writes
			w.send(v, "POST", s.Bridge.URL+"/say", text[len(text)-10:]+"\n")
			said++
		}
	}
	w.send(v, "POST", s.Bridge.URL+"/say", "the end\n")
	w.send(v, "GET", s.Bridge.URL+"/x?api_key="+token, "")
	testkit.Eventually(t, limit, func() bool { return strings.Contains(w.must("logs", s.StationID), "the end") })
	if log := w.must("logs", s.StationID); strings.Count(log, "[redacted]") < said/2 || !strings.Contains(log, "Authorization: [redacted]") {
		t.Errorf("the log: %s", log)
	}
	w.must("stop", s.StationID, "-wait")
	printed := map[string]string{"own log": d.log.String()}
	for name, args := range map[string][]string{"logs": {"logs"}, "status": {"status", "-json"}, "show": {"evidence", "show"}, "export": {"evidence", "export"}, "verify": {"evidence", "verify"}} {
		printed[name] = w.must(append(args, s.StationID)...)
	}
	for name, text := range printed {
		for _, f := range secrets.In(name, []byte(text)) {
			t.Error(f)
		}
		if name == "show" && strings.Contains(text, w.dir) {
			t.Errorf("a private path is in %s", text)
		}
	}
	secrets.None(t, w.path("store"), w.path("state"), w.path("run"))
}

// C8: the bridge does not imply modelAccess: none is given, none is recorded, asking for
// it is refused before anything happens.
func TestReview_C8(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	for _, access := range []any{map[string]any{"provider": "x"}, true, []any{1}} {
		_, errs, status := w.stationd("start", "-f", w.fields(map[string]any{"modelAccess": access}))
		if status == 0 || !strings.Contains(errs, "[model_access_not_available]") {
			t.Errorf("%v: %d %s", access, status, errs)
		}
	}
	var all control.StationList
	if w.answer(&all, "list"); len(all.Stations) != 0 || len(glob(t, w.path("state", "leases", "*"))) != 0 {
		t.Errorf("something happened: %+v", all)
	}
	s := w.start()
	v := w.visitor(s.StationID)
	if _, body := w.get(v, s.Bridge.URL+"/environment"); regexp.MustCompile(`(?i)(api_?key|token|secret|openai|anthropic|_proxy)"?`).MatchString(body) {
		t.Errorf("the environment: %s", body)
	}
	if _, body := w.get(v, s.Bridge.URL+"/fetch?url=https://api.openai.com/v1/models"); !strings.Contains(body, `"ok":false`) {
		t.Errorf("a model's address: %s", body)
	}
	w.must("stop", s.StationID, "-wait")
	if _, text := w.document(s.StationID, 1); !strings.Contains(text, `"modelAccess": null`) {
		t.Error(text)
	}
}

// C9: a provider that does not say how it holds a station is refused before launch.
func TestReview_C9(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	for _, provider := range []string{"delegated-run", "cloud", "LOCAL", "ssh"} {
		_, errs, status := w.stationd("start", "-f", w.fields(map[string]any{"provider": provider}))
		if status == 0 || !(strings.Contains(errs, "[provider_unsupported]") || strings.Contains(errs, "[provider_unknown]")) {
			t.Errorf("%s: %d %s", provider, status, errs)
		}
	}
	var all control.StationList
	if w.answer(&all, "list"); len(all.Stations) != 0 || len(glob(t, w.path("state", "leases", "*"))) != 0 {
		t.Errorf("something happened: %+v", all)
	}
}

// C10: tests cover stale tickets, replaced attempts, stop and revocation, the list of
// headers, canonical paths, loopback and redaction: each line of the specification
// that they are has a test that says so.
func TestReview_C10(t *testing.T) {
	lines := map[string][]string{
		"stale tickets": {"T7", "T9", "T11"}, "attempt replacement": {"T8"}, "stop and revoke": {"T10", "X5", "S4"}, "header allowlist": {"H1", "H2", "H3", "H4", "H5"},
		"canonical paths": {"P3", "P4", "P5", "P6", "P7"}, "loopback only": {"B1", "B2", "B3", "B4", "B5", "B6"}, "redaction": {"D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "V8"},
	}
	proven := map[string]bool{}
	for _, root := range []string{".", filepath.Join("..", "shared", "redact")} {
		err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, sentence := range regexp.MustCompile(`Proves station [^:]*`).FindAllString(string(data), -1) {
				for _, m := range regexp.MustCompile(`17\.([A-Z][0-9]+)`).FindAllStringSubmatch(sentence, -1) {
					proven[m[1]] = true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, all := range lines {
		for _, line := range all {
			if !proven[line] {
				t.Errorf("%s: nothing proves %s", what, line)
			}
		}
	}
}
