package demohost_test

import (
	"testing"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/shared/profile"
)

// The Profile that the demo shows to its readers must be a good one.
func TestProfile_IsValid(t *testing.T) {
	p, err := profile.Parse(demohost.Profile("/usr/local/bin/inbox", "/var/lib/demo/inbox"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Compatible(demohost.HostID, demohost.HostVersion); err != nil {
		t.Error(err)
	}
}
