package evidence_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/supervise"
)

const (
	stationID = "stn_" + "aggd6m7wxjz7bdpcyksk7xmd2i"
	leaseID   = "lse_" + "aggd6m7wxjz7bdpcyksk7xmd2i"
)

func number(n int) *int { return &n }

// full are facts with every field set.
func full() evidence.Facts {
	at := func(s int64) evidence.Time { return evidence.Time(1_770_000_000_123 + 1000*s) }
	when := time.UnixMilli(int64(at(5))).In(time.FixedZone("x", 3600)).Add(4567)
	row := egress.Row{Host: "example.test", Port: 443, Decision: egress.Allowed, Count: 2, BytesUp: 10, BytesDown: 20, First: when, Last: when}
	return evidence.Facts{
		StationID: stationID, Attempt: 2, LeaseID: leaseID, RunID: "run-7", Profile: "agent", Org: "local", Owner: "ann",
		Command: evidence.Command{Mode: launch.Argv, Redacted: []string{"harness", "--port", "{port}"}, Hash: strings.Repeat("ab", 32), Workdir: "app"},
		Grounding: launch.Grounding{Repo: "https://git.test/x.git", SHA: strings.Repeat("1", 40), Branch: "main", Dirty: launch.Dirty{Modified: 1, Digest: strings.Repeat("2", 64)},
			TreeDigest: strings.Repeat("3", 64), Files: 4, Bytes: 5},
		Harness: evidence.Harness{Name: "sandbox-agent", Kind: evidence.FromArtifact, SHA256: strings.Repeat("4", 64), SignatureKeyID: "A1B2C3D4E5F60718"},
		Times:   evidence.Times{Created: at(0), Started: at(1), Ready: at(2), StopRequested: at(3), Ended: at(4)},
		Process: evidence.Process{BootID: "b0070000-0000-4000-8000-000000000000", ShimPID: 10, ShimStart: 100, PID: 11, StartTime: 101, PGID: 11, UID: 65534, Containment: "pidns",
			Exit: evidence.Exit{Code: number(143), Signal: "SIGTERM", Source: evidence.ExitFromShim}},
		Stop: evidence.Stop{Reason: store.StopOperator, RequestedBy: "prn_x", GraceMS: 10_000,
			SignalPath: []evidence.Signal{{At: at(3), Target: "group", Signal: "SIGTERM", Result: "sent"}},
			Cleanup:    evidence.Cleanup{Result: evidence.CleanupClean, Left: []supervise.Left{{PID: 5, Name: "stuck"}}, LeaseRelease: evidence.LeasePending},
			Failure:    &evidence.Failure{Code: "daemon_not_started", Message: "identify the program: there is none"}},
		Egress:    egress.Summary{Profile: "web", Enforcement: egress.Netns, Allowed: []egress.Row{row}, BytesUp: 10, BytesDown: 20},
		Loopback:  evidence.Loopback{Checks: 7, Findings: []supervise.Finding{{Protocol: "udp", Address: "0.0.0.0:5353", Program: "mdns"}}},
		Limits:    evidence.LimitsOf(8*time.Hour, 45*time.Minute),
		Logs:      evidence.LogSummary{Bytes: 1, Dropped: 2, SHA256: strings.Repeat("5", 64)},
		Artifacts: evidence.Manifest{Files: []evidence.File{{Path: "out/a", Bytes: 3, SHA256: strings.Repeat("6", 64)}}, Truncated: true},
		Events:    evidence.Events{Count: 9, HeadHash: strings.Repeat("7", 64)},
		AgentRuntime: &evidence.AgentRuntime{
			Bridge:  evidence.Bridge{Port: 8080, Path: "/s/" + stationID + "/a/2", Host: "x.localhost", Requests: 3, Streams: 1, Refused: map[fault.Code]int64{fault.TicketExpired: 1}, BytesIn: 4, BytesOut: 5},
			Tickets: []evidence.Ticket{{TicketID: "tkt_x", Issuer: "prn_x", PrincipalScope: "prn_y", PathPrefix: "/v1", IssuedAt: at(1), ExpiresAt: at(2), Uses: 3, RevokedReason: "operator_stop"}},
		},
	}
}

func document(t testing.TB, f evidence.Facts) map[string]any {
	t.Helper()
	doc, why := evidence.Document(f, redactor(t))
	if why != nil {
		t.Fatal(why)
	}
	return parse(t, doc)
}

func parse(t testing.TB, doc []byte) (out map[string]any) {
	t.Helper()
	if err := json.Unmarshal(doc, &out); err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	return out
}

// Every field of station §13.2 has its name and its value.
// Proves station 17.V9: modelAccess is null, and is said.
func TestDocument(t *testing.T) {
	doc, why := evidence.Document(full(), redactor(t))
	if why != nil {
		t.Fatal(why)
	}
	const want = `{"schema":"drawbridge/station-evidence","version":1,
"stationId":"` + stationID + `","attempt":2,"leaseId":"` + leaseID + `","runId":"run-7","profile":"agent","org":"local","owner":"ann",
"command":{"mode":"argv","redacted":["harness","--port","{port}"],"hash":"abababababababababababababababababababababababababababababababab","workdir":"app"},
"grounding":{"repo":"https://git.test/x.git","sha":"1111111111111111111111111111111111111111","branch":"main",
 "dirty":{"modified":1,"added":0,"deleted":0,"untracked":0,"digest":"2222222222222222222222222222222222222222222222222222222222222222"},
 "treeDigest":"3333333333333333333333333333333333333333333333333333333333333333","files":4,"bytes":5},
"harness":{"name":"sandbox-agent","kind":"artifact","sha256":"4444444444444444444444444444444444444444444444444444444444444444","signatureKeyId":"A1B2C3D4E5F60718"},
"times":{"created":"2026-02-02T02:40:00.123Z","started":"2026-02-02T02:40:01.123Z","ready":"2026-02-02T02:40:02.123Z","resumed":null,"stopRequested":"2026-02-02T02:40:03.123Z","ended":"2026-02-02T02:40:04.123Z"},
"process":{"bootId":"b0070000-0000-4000-8000-000000000000","shimPid":10,"shimStart":100,"pid":11,"startTime":101,"pgid":11,"uid":65534,"containment":"pidns","exit":{"code":143,"signal":"SIGTERM","source":"shim"}},
"stop":{"reason":"operator_stop","requestedBy":"prn_x","signalPath":[{"at":"2026-02-02T02:40:03.123Z","target":"group","signal":"SIGTERM","result":"sent"}],"graceMs":10000,
 "cleanup":{"result":"clean","left":[{"pid":5,"name":"stuck"}],"leaseRelease":"pending"},"failure":{"code":"daemon_not_started","message":"identify the program: there is none"}},
"egress":{"profile":"web","enforcement":"netns","allowed":[{"host":"example.test","port":443,"decision":"allowed","count":2,"bytesUp":10,"bytesDown":20,"first":"2026-02-02T02:40:05.123Z","last":"2026-02-02T02:40:05.123Z"}],
 "denied":[],"overflow":0,"bytesUp":10,"bytesDown":20},
"loopback":{"checks":7,"findings":[{"protocol":"udp","address":"0.0.0.0:5353","program":"mdns","breach":false}]},
"limits":{"ttl":"8h0m0s","idle":"45m0s","logBytes":8388608,"eventRows":10000,"retentionDays":{"logs":14,"events":90}},
"logs":{"bytes":1,"dropped":2,"sha256":"5555555555555555555555555555555555555555555555555555555555555555"},
"events":{"count":9,"headHash":"7777777777777777777777777777777777777777777777777777777777777777"},
"agentRuntime":{"bridge":{"port":8080,"path":"/s/` + stationID + `/a/2","host":"x.localhost","requests":3,"streams":1,"refused":{"ticket_expired":1},"bytesIn":4,"bytesOut":5},
 "tickets":[{"ticketId":"tkt_x","issuer":"prn_x","principalScope":"prn_y","pathPrefix":"/v1","issuedAt":"2026-02-02T02:40:01.123Z","expiresAt":"2026-02-02T02:40:02.123Z","uses":3,"revokedReason":"operator_stop"}],"ticketCount":1},
"artifacts":[{"path":"out/a","bytes":3,"sha256":"6666666666666666666666666666666666666666666666666666666666666666"}],"artifactsTruncated":true,
"redactionPolicy":"redact/1","redactionFailed":false,"modelAccess":null}`
	if diff := cmp.Diff(strings.ReplaceAll(strings.ReplaceAll(want, "\n ", ""), "\n", ""), string(doc)); diff != "" {
		t.Error(diff)
	}
	// The same facts without a bridge, and with nothing known.
	f := full()
	f.AgentRuntime, f.Artifacts = nil, evidence.Manifest{}
	got := document(t, f)
	if _, ok := got["agentRuntime"]; ok {
		t.Error("an agentRuntime part without a bridge")
	}
	empty := document(t, evidence.Facts{})
	for _, got := range []map[string]any{got, empty} {
		access, said := got["modelAccess"]
		if !said || access != nil || got["artifacts"] == nil || got["schema"] != evidence.Schema {
			t.Errorf("%v", got)
		}
	}
	if times := empty["times"].(map[string]any); times["ready"] != nil {
		t.Errorf("a time that never was: %v", times)
	}
}

// Whatever a text of the facts holds, it is not in the document, which stays whole.
func TestDocument_Redacts(t *testing.T) {
	secrets := []string{known, "dbt_" + strings.Repeat("aB3", 15)[:43], "dbp_" + strings.Repeat("x", 43), "gh" + "p_0123456789abcdefghijABCDEFGHIJ", "/srv/private/state"}
	f := full()
	f.Command.Redacted = append([]string{"--password=hunter2hunter2", "https://joe:hunter2hunter2@host/x"}, secrets...)
	for _, s := range secrets {
		f.RunID += s + " "
		f.Command.Workdir += s + "/"
		f.Grounding.Repo += "ssh://h/x#" + s
		f.Grounding.Branch += s
		f.Harness.Name += s
		f.Harness.SHA256 += "Authorization: Bearer " + s
		f.Process.Containment += s
		f.Process.Exit.Signal += s
		f.Stop.RequestedBy += s
		f.Stop.Failure.Code, f.Stop.Failure.Message = f.Stop.Failure.Code+s, f.Stop.Failure.Message+s
		f.Stop.SignalPath = append(f.Stop.SignalPath, evidence.Signal{Result: s})
		f.Stop.Cleanup.Left = append(f.Stop.Cleanup.Left, supervise.Left{Name: s})
		f.Egress.Denied = append(f.Egress.Denied, egress.Row{Host: s})
		f.Loopback.Findings = append(f.Loopback.Findings, supervise.Finding{Program: s})
		f.Artifacts.Files = append(f.Artifacts.Files, evidence.File{Path: s})
		f.AgentRuntime.Bridge.Host += s
		f.AgentRuntime.Bridge.Refused[fault.Code(s)] = 1
		f.AgentRuntime.Tickets = append(f.AgentRuntime.Tickets, evidence.Ticket{PathPrefix: "/" + s})
	}
	doc, why := evidence.Document(f, redactor(t))
	if why != nil {
		t.Fatal(why)
	}
	for _, s := range append(secrets, "hunter2hunter2") {
		if strings.Contains(string(doc), s) {
			t.Errorf("%q is in %s", s, doc)
		}
	}
	if got := parse(t, doc); got["redactionFailed"] != false || got["stationId"] != stationID {
		t.Errorf("%v", got)
	}
	// Paths of this machine that no redactor knows.
	f = full()
	f.Command.Workdir = "/etc/x"
	for repo, want := range map[string]string{"/home/ann/repo": "<local>", "file:///home/ann/repo": "<local>", "../repo": "<local>", "git@h.test:x/y.git": "git@h.test:x/y.git", "": "", "./a:b": "<local>"} {
		f.Grounding.Repo = repo
		got := document(t, f)
		if got["grounding"].(map[string]any)["repo"] != want || got["command"].(map[string]any)["workdir"] != "<absolute>" {
			t.Errorf("%q: %v %v", repo, got["grounding"], got["command"])
		}
	}
	for message, want := range map[string]string{
		`identify the program "/usr/bin/x" of n: open /usr/bin/x: no`: `identify the program "<absolute>" of n: open <absolute>: no`,
		"/a/b, (/c) and=/d;":             "<absolute>, (<absolute>) and=<absolute>;",
		"fetch https://h.test/a?b=c: no": "fetch https://h.test/a no",
		"<work>/x/y is a/b, 1/2 or //":   "<work>/x/y is a/b, 1/2 or //",
	} {
		f.Stop.Failure = &evidence.Failure{Code: "x", Message: message}
		if got := document(t, f)["stop"].(map[string]any)["failure"].(map[string]any)["message"]; got != want {
			t.Errorf("%q: got %q", message, got)
		}
	}
}

// Every code of the gate may stand in a document as what it is.
func TestDocument_Codes(t *testing.T) {
	f := full()
	for _, e := range fault.Entries() {
		code := e.Code
		f.AgentRuntime.Bridge.Refused[code] = 1
	}
	bridge := document(t, f)["agentRuntime"].(map[string]any)["bridge"].(map[string]any)
	for _, e := range fault.Entries() {
		code := e.Code
		if bridge["refused"].(map[string]any)[string(code)] != 1.0 {
			t.Errorf("%s is hidden", code)
		}
	}
}

// Lists have bounds, and a document that would be too large is the minimal one.
func TestDocument_Bounds(t *testing.T) {
	f := full()
	for range 1000 {
		f.AgentRuntime.Tickets = append(f.AgentRuntime.Tickets, evidence.Ticket{TicketID: "tkt_y"})
		f.Loopback.Findings = append(f.Loopback.Findings, supervise.Finding{Address: netip.IPv6Unspecified().String()})
	}
	f.AgentRuntime.TicketCount = 5000
	agent := document(t, f)["agentRuntime"].(map[string]any)
	if n := len(agent["tickets"].([]any)); n != evidence.MaxTickets || agent["ticketCount"] != 5000.0 {
		t.Errorf("%d tickets of %v", n, agent["ticketCount"])
	}
	f.Harness.Name = strings.Repeat("long ", 1<<20)
	doc, why := evidence.Document(f, redactor(t))
	if why == nil || parse(t, doc)["redactionFailed"] != true {
		t.Errorf("%v: %.200s", why, doc)
	}
}

// Proves station 17.V11: a redactor that fails, breaks off, hides too little or gives
// what is no JSON leaves the minimal document, which holds nothing that was not checked.
func TestDocument_Fails(t *testing.T) {
	leak := "sk-" + "0123456789abcdefghij"
	f := full()
	f.Command.Redacted = []string{leak}
	f.Stop.Reason, f.Org = leak, leak
	f.Events.HeadHash = leak
	weak := redact.New(redact.Options{KnownOnly: true}) // a real one that looks for known values only
	for name, got := range map[string]func() ([]byte, error){
		"none": func() ([]byte, error) { return evidence.Document(f, nil) },
		"weak": func() ([]byte, error) { return evidence.Document(f, weak) },
		"error": func() ([]byte, error) {
			return evidence.Write(f, fake{json: func([]byte) ([]byte, error) { return nil, errFake }})
		},
		"panic": func() ([]byte, error) {
			return evidence.Write(f, fake{json: func([]byte) ([]byte, error) { panic(leak) }})
		},
		"does nothing": func() ([]byte, error) {
			return evidence.Write(f, fake{json: func(d []byte) ([]byte, error) { return d, nil }})
		},
		"no JSON": func() ([]byte, error) {
			return evidence.Write(f, fake{json: func(d []byte) ([]byte, error) { return d[1:], nil }})
		},
		"finds": func() ([]byte, error) {
			return evidence.Write(full(), fake{json: func(d []byte) ([]byte, error) { return d, nil }, verify: errFake})
		},
	} {
		doc, why := got()
		if why == nil || strings.Contains(why.Error(), leak) || strings.Contains(string(doc), leak) {
			t.Errorf("%s: %v: %s", name, why, doc)
		}
		m := parse(t, doc)
		access, said := m["modelAccess"]
		if m["redactionFailed"] != true || m["stationId"] != stationID || m["leaseId"] != leaseID || m["attempt"] != 2.0 || m["schema"] != evidence.Schema ||
			m["exit"].(map[string]any)["code"] != 143.0 || !said || access != nil || m["command"] != nil || m["org"] != nil {
			t.Errorf("%s: %s", name, doc)
		}
	}
	f.StationID, f.Times.Ended = "stn_"+leak, 1<<62
	doc, _ := evidence.Document(f, nil)
	if m := parse(t, doc); m["stationId"] != "" || m["redactionFailed"] != true {
		t.Errorf("%s", doc)
	}
}
