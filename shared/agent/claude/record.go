package claude

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"drawbridge/shared/agent/journal"
)

var (
	errCorrupt     = errors.New("the transcript has a bad record in the middle")
	errNameTooLong = unix.ENAMETOOLONG
)

// record is one line of a transcript, as far as it is looked at.
type record struct {
	Type, Subtype  string
	UUID, Parent   string
	LogicalParent  string // across a compaction
	Prompt         string // promptId
	Source         string // promptSource: typed, queued, sdk, system
	Session        string // lower case
	Cwd            string
	At             time.Time
	Meta           bool
	Sidechain      bool
	Summary        bool // of a compaction
	Human          bool // origin.kind
	Role, Model    string
	Message        string // message.id
	Stop           string // message.stop_reason
	Text           string // content that is one text
	Plain          bool   // content is one text
	Blocks         []block
	Delivered      string // text of a prompt that was slipped into a running turn
	HasDelivered   bool
	Title, Summing string // of ai-title and summary records
}

// block is one part of a message.
type block struct {
	Type  text           `json:"type"`
	Text  text           `json:"text"`
	ID    text           `json:"id"`
	Name  text           `json:"name"`
	Input jsontext.Value `json:"input"`
	Use   text           `json:"tool_use_id"`
	Error flag           `json:"is_error"`
}

type recordJSON struct {
	Type              text           `json:"type"`
	Subtype           text           `json:"subtype"`
	UUID              text           `json:"uuid"`
	ParentUUID        text           `json:"parentUuid"`
	LogicalParentUUID text           `json:"logicalParentUuid"`
	PromptID          text           `json:"promptId"`
	PromptSource      text           `json:"promptSource"`
	SessionID         text           `json:"sessionId"`
	Cwd               text           `json:"cwd"`
	Timestamp         text           `json:"timestamp"`
	IsMeta            flag           `json:"isMeta"`
	IsSidechain       flag           `json:"isSidechain"`
	IsCompactSummary  flag           `json:"isCompactSummary"`
	AITitle           text           `json:"aiTitle"`
	Summary           text           `json:"summary"`
	Origin            jsontext.Value `json:"origin"`
	Message           jsontext.Value `json:"message"`
	Attachment        jsontext.Value `json:"attachment"`
}

type messageJSON struct {
	ID      text           `json:"id"`
	Role    text           `json:"role"`
	Model   text           `json:"model"`
	Stop    text           `json:"stop_reason"`
	Content jsontext.Value `json:"content"`
}

// parseRecord reads one complete line. One that is no JSON object is corruption.
func parseRecord(l journal.Line) (record, error) {
	var j recordJSON
	data := bytes.TrimSpace(l.Data)
	if len(data) == 0 || data[0] != '{' {
		return record{}, fmt.Errorf("%w at byte %d", errCorrupt, l.Start)
	}
	if err := json.Unmarshal(data, &j, lenient); err != nil {
		return record{}, fmt.Errorf("%w at byte %d", errCorrupt, l.Start)
	}
	r := record{
		Type: string(j.Type), Subtype: string(j.Subtype), UUID: string(j.UUID), Parent: string(j.ParentUUID),
		LogicalParent: string(j.LogicalParentUUID), Prompt: string(j.PromptID), Source: string(j.PromptSource),
		Session: strings.ToLower(string(j.SessionID)), Cwd: string(j.Cwd), Meta: bool(j.IsMeta), Sidechain: bool(j.IsSidechain),
		Summary: bool(j.IsCompactSummary), Title: string(j.AITitle), Summing: string(j.Summary),
	}
	if t, err := time.Parse(time.RFC3339, string(j.Timestamp)); err == nil {
		r.At = t.UTC()
	}
	switch r.Type {
	case "user", "assistant":
		r.message(j.Message)
		var origin struct {
			Kind text `json:"kind"`
		}
		if object(j.Origin, &origin) {
			r.Human = origin.Kind == "human"
		}
	case "attachment":
		var a struct {
			Type   text `json:"type"`
			Prompt text `json:"prompt"`
		}
		if object(j.Attachment, &a) && a.Type == "queued_command" {
			r.Delivered, r.HasDelivered = string(a.Prompt), true
		}
	}
	return r, nil
}

// message reads the message of a record. What has another shape counts as empty.
func (r *record) message(v jsontext.Value) {
	var m messageJSON
	if !object(v, &m) {
		return
	}
	r.Role, r.Model, r.Message, r.Stop = string(m.Role), string(m.Model), string(m.ID), string(m.Stop)
	switch {
	case len(m.Content) == 0:
	case m.Content[0] == '"':
		var t text
		_ = t.UnmarshalJSON(m.Content)
		r.Text, r.Plain = string(t), true
	case m.Content[0] == '[':
		var parts []jsontext.Value
		if json.Unmarshal(m.Content, &parts, lenient) != nil {
			return
		}
		for _, p := range parts {
			var b block
			if object(p, &b) {
				r.Blocks = append(r.Blocks, b)
			}
		}
	}
}

// object decodes a value that is an object; anything else is refused.
func object(v jsontext.Value, into any) bool {
	return len(v) > 0 && v[0] == '{' && json.Unmarshal(v, into, lenient) == nil
}

// prompts reports whether the record begins a turn: a prompt, whoever gave it.
// Results of tools and marks of an interruption have the same type and no source.
func (r record) prompts() bool {
	return r.Type == "user" && r.Role == "user" && r.Plain && r.Source != "" && !r.Sidechain && !r.Summary
}

// human reports whether a prompt came through the composer.
func (r record) human() bool {
	return r.prompts() && !r.Meta && r.Human && (r.Source == "typed" || r.Source == "queued")
}
