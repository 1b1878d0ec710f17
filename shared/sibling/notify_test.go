package sibling_test

import (
	"strings"
	"testing"

	"drawbridge/shared/sibling"
)

func TestParseNotify(t *testing.T) {
	tests := []struct {
		text           string
		ready, standby bool
		status         string
	}{
		{"READY=1", true, false, ""},
		{"READY=1\nSTATUS=standby", true, true, "standby"},
		{"STATUS=Stand-by for outboxd/1", false, true, "Stand-by for outboxd/1"},
		{"STATUS=active\nREADY=1\n", true, false, "active"},
		{"READY=0", false, false, ""},
		{"STOPPING=1", false, false, ""},
		{"NOTREADY=1\n=\n==", false, false, ""},
		{"", false, false, ""},
	}
	for _, tt := range tests {
		ready, standby, status := sibling.ParseNotify(tt.text)
		if ready != tt.ready || standby != tt.standby || status != tt.status {
			t.Errorf("%q: %t %t %q", tt.text, ready, standby, status)
		}
	}
}

func FuzzParseNotify(f *testing.F) {
	f.Add("READY=1\nSTATUS=standby")
	f.Add("STATUS=\nREADY=")
	f.Fuzz(func(t *testing.T, text string) {
		ready, standby, status := sibling.ParseNotify(text)
		if ready && !strings.Contains(text, "READY=1") || standby && status == "" {
			t.Errorf("%q: %t %t %q", text, ready, standby, status)
		}
	})
}
