package connector_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/bridge/internal/connector"
	"drawbridge/shared/profile"
	"drawbridge/shared/service"
)

// call runs bridge connector and gives its streams and exit status.
func call(t *testing.T, stdin string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	p := service.Program{
		Name: "bridge", Stdout: &out, Stderr: &errs,
		Commands: []*service.Command{connector.Command(strings.NewReader(stdin), &out, &errs)},
	}
	status = p.Main(t.Context(), append([]string{"connector"}, args...))
	return out.String(), errs.String(), status
}

// deliver gives the arguments of one delivery into an inbox.
func deliver(dir, n string) []string {
	return []string{
		"deliver", "--session", "host-session", "--delivery-id", "delivery-" + n, "--message-id", "message-" + n,
		"--idempotency-key", "key-" + n, "--inbox", dir,
	}
}

type acknowledgement struct {
	Result struct {
		Status       string `json:"status"`
		AcceptanceID string `json:"acceptance_id"`
		Reason       string `json:"reason"`
	} `json:"result"`
	Request struct {
		DeliveryID string `json:"delivery_id"`
		MessageID  string `json:"message_id"`
	} `json:"request"`
}

func parse(t *testing.T, out string) acknowledgement {
	t.Helper()
	var a acknowledgement
	dec := json.NewDecoder(strings.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil || dec.More() {
		t.Fatalf("stdout is not one acknowledgement: %q (%v)", out, err)
	}
	return a
}

// A message is kept once, whatever it holds, and every attempt is answered alike.
func TestDeliver_Inbox(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "box")
	body := "Codex finished.\nquote \" dollar $(id) tab\t<&>\u2028 end"
	var first acknowledgement
	for attempt := range 3 {
		out, errs, status := call(t, body, deliver(dir, "1")...)
		a := parse(t, out)
		if status != 0 || a.Result.Status != "accepted" || a.Request.DeliveryID != "delivery-1" || a.Request.MessageID != "message-1" {
			t.Fatalf("attempt %d: status %d, %s%s", attempt, status, out, errs)
		}
		if attempt == 0 {
			first = a
		} else if a != first {
			t.Errorf("attempt %d answers %v, the first %v", attempt, a, first)
		}
	}
	call(t, "another", deliver(dir, "2")...)
	letters, err := connector.Letters(dir)
	if err != nil || len(letters) != 2 {
		t.Fatalf("the inbox holds %v (%v)", letters, err)
	}
	if l := letters[0]; l.Body != body || l.Session != "host-session" || l.AcceptanceID != first.Result.AcceptanceID {
		t.Errorf("letter %+v", l)
	}
	for _, name := range []string{connector.MessagesFile, "lock"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
}

// The same key with anything else is another message: it is never taken.
func TestDeliver_KeyOfAnother(t *testing.T) {
	dir := t.TempDir()
	call(t, "one", deliver(dir, "1")...)
	out, _, status := call(t, "two", deliver(dir, "1")...)
	if a := parse(t, out); status != 1 || a.Result.Status != "rejected" || a.Result.AcceptanceID != "" {
		t.Errorf("status %d, %s", status, out)
	}
	if letters, err := connector.Letters(dir); err != nil || len(letters) != 1 || letters[0].Body != "one" {
		t.Errorf("the inbox holds %v (%v)", letters, err)
	}
}

// A line that a crash cut was never acknowledged: it goes, the message comes anew.
func TestDeliver_TornLine(t *testing.T) {
	dir := t.TempDir()
	call(t, "whole", deliver(dir, "1")...)
	file := filepath.Join(dir, connector.MessagesFile)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for cut := 1; cut < len(whole); cut += 7 {
		torn := append(append([]byte{}, whole...), bytes.ReplaceAll(whole[:cut], []byte("-1"), []byte("-2"))...)
		if err := os.WriteFile(file, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, _, status := call(t, "whole", deliver(dir, "2")...); status != 0 || parse(t, out).Result.Status != "accepted" {
			t.Fatalf("cut at %d: status %d, %s", cut, status, out)
		}
		letters, err := connector.Letters(dir)
		if err != nil || len(letters) != 2 || letters[1].DeliveryID != "delivery-2" {
			t.Fatalf("cut at %d: %v (%v)", cut, letters, err)
		}
	}
}

// Many attempts at once keep each message once.
func TestDeliver_AtOnce(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			v := connector.Inbox{Dir: dir, Now: time.Now}.Deliver(context.Background(), connector.Message{
				Session: "s", DeliveryID: fmt.Sprint("d", i%6), MessageID: fmt.Sprint("m", i%6), IdempotencyKey: fmt.Sprint("k", i%6), Body: "b",
			})
			if v.Word != connector.Accepted {
				t.Errorf("message %d: %+v", i, v)
			}
		})
	}
	all.Wait()
	letters, err := connector.Letters(dir)
	if err != nil || len(letters) != 6 {
		t.Errorf("%d letters (%v)", len(letters), err)
	}
}

// Where nothing can be delivered now, a later attempt may; nothing is followed
// that is not the Host's own.
func TestDeliver_InboxUnusable(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, dir string){
		"others can write": func(t *testing.T, dir string) { change(t, os.Chmod(dir, 0o777)) },
		"not a directory":  func(t *testing.T, dir string) { change(t, os.Remove(dir), os.WriteFile(dir, nil, 0o600)) },
		"messages are a link": func(t *testing.T, dir string) {
			change(t, os.WriteFile(dir+"-other", []byte("mine\n"), 0o600), os.Symlink(dir+"-other", filepath.Join(dir, connector.MessagesFile)))
		},
		"messages are a directory": func(t *testing.T, dir string) { change(t, os.Mkdir(filepath.Join(dir, connector.MessagesFile), 0o700)) },
		"full": func(t *testing.T, dir string) {
			file := filepath.Join(dir, connector.MessagesFile)
			change(t, os.WriteFile(file, []byte("x\n"), 0o600), os.Truncate(file, 64<<20-1))
			f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
			change(t, err)
			_, err = f.WriteString("\n")
			change(t, err, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "box")
			change(t, os.Mkdir(dir, 0o700))
			make(t, dir)
			out, _, status := call(t, "hello", append(deliver(dir, "1"), "--wait", "2s")...)
			if a := parse(t, out); status != 1 || a.Result.Status != "retry" || a.Result.Reason == "" {
				t.Errorf("status %d, %s", status, out)
			}
			if other, err := os.ReadFile(dir + "-other"); err == nil && string(other) != "mine\n" {
				t.Errorf("the link was followed: %q", other)
			}
		})
	}
}

func change(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A body over the bound is refused for good; a mistake of the caller is no answer.
func TestDeliver_Refused(t *testing.T) {
	dir := t.TempDir()
	out, _, status := call(t, strings.Repeat("x", connector.MaxBody+1), deliver(dir, "1")...)
	if a := parse(t, out); status != 1 || a.Result.Status != "rejected" {
		t.Errorf("status %d, %s", status, out)
	}
	for name, args := range map[string][]string{
		"no way":       {"deliver", "--session", "s", "--delivery-id", "d", "--message-id", "m"},
		"no message":   {"deliver", "--session", "s", "--delivery-id", "d", "--inbox", dir},
		"unknown pane": {"deliver", "--session", "s", "--delivery-id", "d", "--message-id", "m", "--pane", "left"},
		"too long":     append(deliver(dir, "1"), "--wait", "29s"),
		"two lines":    {"deliver", "--session", "s\nt", "--delivery-id", "d", "--message-id", "m", "--inbox", dir},
	} {
		if out, _, status := call(t, "", args...); status != 2 || out != "" {
			t.Errorf("%s: status %d, stdout %q", name, status, out)
		}
	}
}

// The printed Profile parses, names this program, and says what deliver answers.
func TestProfile(t *testing.T) {
	out, errs, status := call(t, "", "profile", "--id", "my-host", "--host", "my-host", "--range", ">=1.0.0 <2.0.0",
		"--session-variable", "MY_HOST_SESSION", "--inbox", "relative/box", "--pane", "thread", "--tmux-socket", "work")
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	p, err := profile.Parse([]byte(out))
	if err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if err := p.Ready(); err != nil {
		t.Error(err)
	}
	args, err := p.Arguments(profile.Values{SessionID: "s", DeliveryID: "d", MessageID: "m", IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := "connector deliver --session s --delivery-id d --message-id m --idempotency-key k --inbox " + filepath.Join(wd, "relative/box") + " --pane thread --tmux-socket work"
	if got := strings.Join(args, " "); got != want {
		t.Errorf("arguments %s, want %s", got, want)
	}
	for word, outcome := range map[string]string{"accepted": "accepted", "retry": "retryable_failure", "rejected": "permanent_failure", "unknown": "uncertain"} {
		if got := string(p.Acknowledgement().Mapping[word]); got != outcome {
			t.Errorf("%s means %q, want %q", word, got, outcome)
		}
	}
	if _, _, status := call(t, "", "profile", "--id", "my-host"); status != 2 {
		t.Errorf("without what it needs: status %d", status)
	}
}
