package operator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
)

// show prints an answer for people. list and status have a form of their own;
// everything else is printed member by member.
func show(w io.Writer, tool string, data []byte) error {
	var b bytes.Buffer
	var err error
	switch tool {
	case "list":
		err = showList(&b, data)
	case "status":
		err = showStatus(&b, data)
	default:
		err = showMembers(&b, data)
	}
	if err != nil {
		return fmt.Errorf("show the answer: %w", err)
	}
	_, err = w.Write(b.Bytes())
	return err
}

// listed is what a person wants to see of list.
type listed struct {
	Terminals []struct {
		ID       string `json:"id"`
		Ref      string `json:"short_ref"`
		Agent    string `json:"agent"`
		Version  string `json:"agent_version"`
		Class    string `json:"version_class"`
		Target   string `json:"target"`
		Cwd      string `json:"workspace"`
		State    string `json:"activity_state"`
		Managed  *managed
		Blocking []turnLine                 `json:"blocking_turns"`
		Warnings []string                   `json:"warnings"`
		Actions  map[string]json.RawMessage `json:"available_actions"`
	} `json:"terminals"`
	Watches []struct {
		ID     string `json:"watch_id"`
		Status string `json:"status"`
		Where  string `json:"terminal_id"`
	} `json:"terminal_watches"`
	Gone []turnLine `json:"unavailable_managed_turns"`
	Scan struct {
		Errors []string `json:"errors"`
	} `json:"terminal_scan"`
	Store struct {
		Writable bool   `json:"writable"`
		Reason   string `json:"reason"`
	} `json:"store"`
}

type managed struct {
	SessionID string    `json:"session_id"`
	Turn      *turnLine `json:"current_turn"`
}

type turnLine struct {
	ID      string `json:"turn_id"`
	Status  string `json:"status"`
	Request string `json:"request"`
	Reason  string `json:"reason"`
}

func showList(b *bytes.Buffer, data []byte) error {
	var doc listed
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	if len(doc.Terminals) == 0 {
		fmt.Fprintln(b, "No pane runs an agent.")
	} else {
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "PANE\tAGENT\tSTATE\tREF\tWORKSPACE\tCAN")
		for _, r := range doc.Terminals {
			can := make([]string, 0, len(r.Actions))
			for name := range r.Actions {
				can = append(can, name)
			}
			slices.Sort(can)
			fmt.Fprintf(t, "%s\t%s %s\t%s\t%s\t%s\t%s\n", plain(r.Target), plain(r.Agent), plain(r.Version), plain(r.State), plain(r.Ref), plain(r.Cwd), strings.Join(can, " "))
		}
		_ = t.Flush() // the buffer takes everything
	}
	for _, r := range doc.Terminals {
		name := plain(r.Target)
		if r.Managed != nil && r.Managed.Turn != nil {
			line(b, name, *r.Managed.Turn)
		}
		for _, turn := range r.Blocking {
			line(b, name+" is blocked by", turn)
		}
		for _, text := range r.Warnings {
			fmt.Fprintf(b, "%s: %s\n", name, plain(text))
		}
	}
	for _, w := range doc.Watches {
		fmt.Fprintf(b, "watch %s: %s, on %s\n", plain(w.ID), plain(w.Status), plain(w.Where))
	}
	for _, turn := range doc.Gone {
		line(b, "without a pane", turn)
	}
	for _, text := range doc.Scan.Errors {
		fmt.Fprintf(b, "not seen: %s\n", plain(text))
	}
	if !doc.Store.Writable && doc.Store.Reason != "" {
		fmt.Fprintf(b, "the Store is read only: %s\n", plain(doc.Store.Reason))
	}
	return nil
}

func line(b *bytes.Buffer, head string, t turnLine) {
	fmt.Fprintf(b, "%s: %s is %s", head, plain(t.ID), plain(t.Status))
	if t.Reason != "" {
		fmt.Fprintf(b, " (%s)", plain(t.Reason))
	}
	if t.Request != "" {
		fmt.Fprintf(b, ": %s", plain(t.Request))
	}
	fmt.Fprintln(b)
}

// showStatus prints what status is about first, and the screen last.
func showStatus(b *bytes.Buffer, data []byte) error {
	var doc struct {
		About   string                     `json:"about"`
		Screen  *struct{ Excerpt string }  `json:"terminal_screen"`
		Actions map[string]json.RawMessage `json:"available_actions"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	if doc.About != "" {
		fmt.Fprintf(b, "%s\n\n", plain(doc.About))
	}
	if err := showMembers(b, data, "about", "terminal_screen", "available_actions", "limitations"); err != nil {
		return err
	}
	if len(doc.Actions) > 0 {
		can := make([]string, 0, len(doc.Actions))
		for name := range doc.Actions {
			can = append(can, name)
		}
		slices.Sort(can)
		fmt.Fprintf(b, "can: %s\n", strings.Join(can, " "))
	}
	if doc.Screen != nil && doc.Screen.Excerpt != "" {
		fmt.Fprintf(b, "\n%s", boxed(doc.Screen.Excerpt))
	}
	return nil
}

// boxed sets the text of a screen apart from our own.
func boxed(text string) string {
	var b strings.Builder
	for _, row := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		b.WriteString(strings.TrimRight("  | "+plain(row), " ") + "\n")
	}
	return b.String()
}

// showMembers prints one JSON object, members in their order, without those of
// leave and without empty ones.
func showMembers(b *bytes.Buffer, data []byte, leave ...string) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if _, err := dec.Token(); err != nil {
		return err
	}
	return members(b, dec, "", leave)
}

// members prints the rest of an object whose "{" has been read.
func members(b *bytes.Buffer, dec *json.Decoder, indent string, leave []string) error {
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		key := plain(fmt.Sprint(name))
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		if slices.Contains(leave, key) || slices.Contains([]string{`""`, "null", "[]", "{}"}, string(raw)) {
			continue
		}
		if err := oneValue(b, key+":", raw, indent); err != nil {
			return err
		}
	}
	_, err := dec.Token() // "}"
	return err
}

// oneValue prints one value behind its head.
func oneValue(b *bytes.Buffer, head string, raw json.RawMessage, indent string) error {
	switch raw[0] {
	case '{':
		fmt.Fprintf(b, "%s%s\n", indent, head)
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		if _, err := dec.Token(); err != nil {
			return err
		}
		return members(b, dec, indent+"  ", nil)
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		fmt.Fprintf(b, "%s%s\n", indent, head)
		for _, e := range list {
			if err := oneValue(b, "-", e, indent+"  "); err != nil {
				return err
			}
		}
		return nil
	case '"':
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
		rows := strings.Split(strings.TrimRight(text, "\n"), "\n")
		if len(rows) == 1 {
			fmt.Fprintf(b, "%s%s %s\n", indent, head, plain(rows[0]))
			return nil
		}
		fmt.Fprintf(b, "%s%s\n", indent, head)
		for _, row := range rows {
			fmt.Fprintf(b, "%s  %s\n", indent, plain(row))
		}
		return nil
	}
	fmt.Fprintf(b, "%s%s %s\n", indent, head, raw)
	return nil
}

// plain makes text harmless for a terminal: it came from an agent's screen.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return '\uFFFD'
		}
		return r
	}, text)
}
