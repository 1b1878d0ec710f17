package sibling_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/sibling"
)

func TestEnvironment(t *testing.T) {
	environ := []string{"PATH=/bin", "HOME=/h", "LC_ALL=C", "XDG_STATE_HOME=/s", "OPENAI_API_KEY=secret", "MY_AGENT_TOKEN=t", "MY_SESSION=id", "LANGUAGE=x"}
	tests := map[string]struct{ also, extra, want []string }{
		"base":      {nil, []string{"MY_SESSION=id"}, []string{"PATH=/bin", "HOME=/h", "LC_ALL=C", "XDG_STATE_HOME=/s", "MY_SESSION=id"}},
		"allowlist": {[]string{"MY_AGENT_TOKEN", "ABSENT"}, nil, []string{"PATH=/bin", "HOME=/h", "LC_ALL=C", "XDG_STATE_HOME=/s", "MY_AGENT_TOKEN=t"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, sibling.Environment(environ, tt.also, tt.extra)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
