package lease_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/lease"
)

const pinned = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDkDoEGgGg3eQVlE3PKFGjfLHO0gIvzQbmwMBDYh6pZ1 the host"

// entry is a provider of the file, with changes to a good one.
func entry(changes map[string]any) map[string]any {
	out := map[string]any{"name": "far", "kind": "ssh", "host": "far.example.org", "user": "station", "hostKey": pinned, "keyFile": "/etc/drawbridge/key", "dir": "/srv/station"}
	maps.Copy(out, changes)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}

func file(t *testing.T, entries ...map[string]any) []byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{"providers": entries})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseRemotes(t *testing.T) {
	got, err := lease.ParseRemotes(file(t, entry(nil), entry(map[string]any{"name": "b-2", "port": 2222, "keyFile": nil, "agent": "/run/agent", "host": "2001:db8::1"})))
	if err != nil || len(got) != 2 || got[0].Port != 22 || got[1].Port != 2222 || got[1].Agent != "/run/agent" {
		t.Errorf("%+v, %v", got, err)
	}
	for name, tc := range map[string]struct {
		data []byte
		says string
	}{
		"not JSON":        {[]byte("{"), "read the providers file"},
		"unknown field":   {file(t, entry(map[string]any{"proxyJump": "x"})), "read the providers file"},
		"no name":         {file(t, entry(map[string]any{"name": ""})), "name"},
		"local":           {file(t, entry(map[string]any{"name": "local"})), `"local" is taken`},
		"twice":           {file(t, entry(nil), entry(nil)), `providers[1]: name: "far" is taken`},
		"another kind":    {file(t, entry(map[string]any{"kind": "delegated-run"})), "kind"},
		"no host":         {file(t, entry(map[string]any{"host": ""})), "host"},
		"option as host":  {file(t, entry(map[string]any{"host": "-oProxyCommand=x"})), "host"},
		"port":            {file(t, entry(map[string]any{"port": 65536})), "port"},
		"no user":         {file(t, entry(map[string]any{"user": nil})), "user"},
		"no host key":     {file(t, entry(map[string]any{"hostKey": nil})), "hostKey"},
		"known_hosts":     {file(t, entry(map[string]any{"hostKey": "far.example.org " + pinned})), "without a host name"},
		"two host keys":   {file(t, entry(map[string]any{"hostKey": pinned + "\n" + pinned})), "one line"},
		"no key":          {file(t, entry(map[string]any{"keyFile": nil})), "exactly one of keyFile and agent"},
		"key and agent":   {file(t, entry(map[string]any{"agent": "/run/agent"})), "exactly one of keyFile and agent"},
		"relative key":    {file(t, entry(map[string]any{"keyFile": "key"})), "absolute"},
		"relative dir":    {file(t, entry(map[string]any{"dir": "srv"})), "dir"},
		"root as dir":     {file(t, entry(map[string]any{"dir": "/"})), "dir"},
		"up in dir":       {file(t, entry(map[string]any{"dir": "/srv/../etc"})), "dir"},
		"a shell in dir":  {file(t, entry(map[string]any{"dir": "/srv/$(id)"})), "dir"},
		"quotes in dir":   {file(t, entry(map[string]any{"dir": "/srv/a'b"})), "dir"},
		"too long a dir":  {file(t, entry(map[string]any{"dir": "/" + strings.Repeat("d", 60)})), "dir"},
		"too many":        {file(t, many(65)...), "more than 64"},
		"names of a path": {file(t, entry(map[string]any{"name": "../x"})), "name"},
	} {
		_, err := lease.ParseRemotes(tc.data)
		if !fault.Is(err, fault.ProvidersInvalid) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
		if f, ok := fault.As(err); ok && f.Hint == "" {
			t.Errorf("%s: nothing says what to do", name)
		}
	}
}

func many(n int) (out []map[string]any) {
	for range n {
		out = append(out, entry(nil))
	}
	return out
}

// The file is an administrator's, or is not read.
func TestLoadRemotes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "providers.json")
	if _, err := lease.LoadRemotes(path); !fault.Is(err, fault.ProvidersInvalid) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, file(t, entry(nil)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := lease.LoadRemotes(path); err != nil || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.Chmod(path, 0o620); err != nil {
		t.Fatal(err)
	}
	if _, err := lease.LoadRemotes(path); !fault.Is(err, fault.ProvidersInvalid) {
		t.Errorf("others may write it: %v", err)
	}
}
