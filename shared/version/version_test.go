package version

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFrom(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, tc := range []struct {
		name, stamp string
		settings    map[string]string
		want        Info
	}{
		{"stamped", "v1.2.0-3-gabc\n", map[string]string{"vcs.revision": commit}, Info{Version: "v1.2.0-3-gabc", Commit: commit}},
		{"not stamped", "", map[string]string{"vcs.revision": commit}, Info{Version: "0123456789ab", Commit: commit}},
		{"not stamped, changed", "", map[string]string{"vcs.revision": commit, "vcs.modified": "true"}, Info{Version: "0123456789ab-dirty", Commit: commit, Dirty: true}},
		{"nothing recorded", " ", nil, Info{Version: Unknown}},
		{"short revision", "", map[string]string{"vcs.revision": "abc"}, Info{Version: "abc", Commit: "abc"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Go = runtime.Version()
			if diff := cmp.Diff(tc.want, from(tc.stamp, tc.settings)); diff != "" {
				t.Errorf("info (-want +got):\n%s", diff)
			}
		})
	}
	if String() == "" {
		t.Error("no version")
	}
}
