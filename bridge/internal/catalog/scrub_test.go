package catalog_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// authority are member names that must never come out, in the spellings that
// code and documents use.
var authority = strings.Fields(`
	token binding_token fencingToken fingerprint approval-fingerprint hash body_hash requestHash sha256 content_sha256
	digest evidence_digest revision store_revision sessionRevisions binding_id bindingId binding_ids binding_generation
	bindingGenerations generation generation_id nonce challenge etag proof snapshot_id selection_handle selectionScope
	selection_snapshot live_native_thread_id acceptance_evidence candidate_rollouts claude_transcript_anchor
	codex_rollout_acceptance_anchor codex_open_root_rollout_inventory native_session_takeover expected_approval_fingerprint
	expected_callback_conversation_id expected_callback_message_id expected_callback_session_id expected_callback_turn_id
	epoch lease_holder callback_route route envelope profile_id profileId controller_session_id attempt_id executable
	argv environment env store_path store_dir rollout_path transcript_path draft draft_text raw_screen raw_approval_region`)

// plain are members that must come out unharmed.
var plain = strings.Fields(`
	id session_id turn_id watch_id terminal_id native_thread_id message_id expected_message_id expected_transition_id
	transition_id interaction_id status workspace text excerpt about completion_text completion_id format_version
	writer_protocol total_tokens foreground_proof short_ref binding_status generations_seen reason_code command label`)

const (
	canary  = "CANARY-7f3a9c"
	session = "CANARY-controller-session"
)

// Proves tools 11.6: whatever shape a result has, no canary comes out, and
// nothing else is lost.
func TestScrub_NoCanary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body, want := drawObject(t, 0)
		res := run(t, open(t, &fake{out: handoff.Outcome{Body: body}}, session), "status", valid["status"])
		if strings.Contains(res.Text, "CANARY") || strings.Contains(string(res.Structured), "CANARY") {
			t.Fatalf("a canary came out:\n%s\nof %v", res.Text, body)
		}
		if diff := cmp.Diff(plainForm(want), object(t, res)); diff != "" {
			t.Fatalf("lost or changed:\n%s", diff)
		}
	})
}

// drawObject makes an object with canaries in hidden places, and what is to be
// left of it.
func drawObject(t *rapid.T, depth int) (in, want map[string]any) {
	in, want = map[string]any{}, map[string]any{}
	for range rapid.IntRange(0, 4).Draw(t, "hidden") {
		in[rapid.SampledFrom(authority).Draw(t, "name")] = drawCanary(t, depth)
	}
	for range rapid.IntRange(0, 4).Draw(t, "plain") {
		name := rapid.SampledFrom(plain).Draw(t, "name")
		in[name], want[name] = drawPlain(t, depth)
	}
	if rapid.Bool().Draw(t, "explain") {
		name := rapid.SampledFrom([]string{"reason", "activity_reason", "last_error", "warnings", "errorMessage", "diagnostics"}).Draw(t, "name")
		form := rapid.SampledFrom([]string{
			"lease lost, token=%s", `{"body_hash": "%s"}`, "run with --binding-token %s", "the revision %s is stale",
			"binding id %s differs", "compare-and-swap on %s lost", "fingerprint %s", "open /x/store.db for %s",
			"read /home/u/.codex/sessions/%s", "session " + session + " %.0s",
		}).Draw(t, "form")
		in[name], want[name] = []any{fmt.Sprintf(form, canary), "the pane is busy"}, []any{catalog.Withheld, "the pane is busy"}
	}
	return in, want
}

func drawCanary(t *rapid.T, depth int) any {
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return []any{canary, map[string]any{"id": canary}}
	case 1:
		return map[string]any{"value": canary, "list": []any{canary}}
	}
	return canary
}

func drawPlain(t *rapid.T, depth int) (in, want any) {
	switch kind := rapid.IntRange(0, 6).Draw(t, "kind"); {
	case kind == 0 && depth < 4:
		return drawObject(t, depth+1)
	case kind == 1 && depth < 4:
		a, wa := drawPlain(t, depth+1)
		b, wb := drawObject(t, depth+1)
		return []any{a, b}, []any{wa, wb}
	case kind == 2:
		return 9007199254740991, 9007199254740991
	case kind == 3:
		return nil, nil
	case kind == 4:
		return "in session " + session + "!", "in session [withheld]!"
	}
	s := rapid.SampledFrom([]string{
		"the agent wrote: set TOKEN=abc and revision 7", `"hash": 5 in ordinary text`, "", "a\nb\t\u2028", "<&>", "--token x",
	}).Draw(t, "text")
	return s, s
}

func plainForm(v any) map[string]any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

// Proves tools 11.7: a reason with an embedded value is replaced as a whole; the
// same words in an agent's text are not touched.
func TestScrub_Reasons(t *testing.T) {
	tests := []struct {
		name, text string
		withheld   bool
	}{
		{"assignment", "lost: lease_token=abc", true},
		{"spaced assignment", "lost: etag = abc", true},
		{"JSON member", `got {"approval_fingerprint": "ab"}`, true},
		{"option", "call with --binding-id 7", true},
		{"URL", "get http://h/?access_token=1", true},
		{"right behind another name", "cause:token=1", true},
		{"wording revision", "expected Revision 8", true},
		{"wording token", "the token is stale", true},
		{"wording binding id", "another binding-id", true},
		{"wording swap", "compare-and-swap failed", true},
		{"rollout", "read rollout-2026-11-30T12-00-00-0198.jsonl", true},
		{"transcript", "read /c/projects/-w/7677dd46-2da1-48c7-9806-316ea0e1a4b6.jsonl: no", true},
		{"registry", "read /c/sessions/412.json: no", true},
		{"plain", "the agent works", false},
		{"colon", "send to work:0.1: the pane is busy", false},
		{"innocent words", "tokenizer, unhashed, revisit, proofread", false},
		{"path", "open /home/u/work: no such file", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := map[string]any{"about": tt.text, "agent": map[string]any{"text": tt.text},
				"activity_reason": tt.text, "warnings": []string{tt.text}, "last_error": map[string]any{"detail": tt.text}}
			want := tt.text
			if tt.withheld {
				want = catalog.Withheld
			}
			got := object(t, run(t, open(t, &fake{out: handoff.Outcome{Body: body}}), "status", valid["status"]))
			if diff := cmp.Diff(map[string]any{"about": tt.text, "agent": map[string]any{"text": tt.text},
				"activity_reason": want, "warnings": []any{want}, "last_error": map[string]any{"detail": want}}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A path is withheld where it explains and left where an agent wrote it.
func TestScrub_Paths(t *testing.T) {
	const path = "/usr/local/bin/my-agent"
	f := &fake{out: handoff.Outcome{Body: map[string]any{"excerpt": "$ " + path, "reason": "run " + path + ": denied"}}}
	c, err := catalog.New(catalog.Options{Handoff: catalog.Ready(f), Paths: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"excerpt": "$ " + path, "reason": catalog.Withheld}
	if diff := cmp.Diff(want, object(t, run(t, c, "status", valid["status"]))); diff != "" {
		t.Error(diff)
	}
}

// The private values of this process come out of no refusal either.
func TestScrub_PrivateValuesInErrors(t *testing.T) {
	const dir = "/home/u/.local/state/drawbridge/store"
	err := fault.New(fault.StoreUnavailable, "open %s: permission denied", dir).WithHint("look at %s", dir).With("where", dir+"/x")
	res := run(t, open(t, &fake{err: err}, dir, session), "list", `{}`)
	doc := object(t, res)
	if strings.Contains(res.Text, dir) {
		t.Errorf("a private path came out: %s", res.Text)
	}
	if doc["reason"] != catalog.Withheld || doc["where"] != "[withheld]/x" || doc["code"] != "store_unavailable" {
		t.Errorf("refusal %v", doc)
	}
}
