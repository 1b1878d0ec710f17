package profile_test

import (
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

// Proves host-profile 15.11: the table of §3 and the numbers that the library
// would compare wrongly.
func TestCompatible(t *testing.T) {
	const (
		yes  = fault.Code("")
		no   = fault.HostIncompatible
		fail = fault.HostInputInvalid
	)
	for _, c := range []struct {
		text, version string
		want          fault.Code
	}{
		{">=1.8.0 <2.0.0", "1.8.0", yes},
		{">=1.8.0 <2.0.0", "1.9.7+host.1", yes},
		{">=1.8.0 <2.0.0", "1.8.0-alpha.1", no},
		{">=1.8.0 <2.0.0", "2.0.0", no},
		{">=1.8.0 <2.0.0", "2.0.0-alpha.1", no},
		{">=2.0.0-alpha.1 <2.0.0", "2.0.0-alpha.2", yes},
		{">=2.0.0-alpha.1 <2.0.0", "2.0.1-alpha.2", no},
		{">=2.0.0-alpha.1 <3.0.0", "2.0.1-alpha.2", no},
		{">=1.8.0 <2.0.0", "v1.9.0", fail},
		{">=1.8.0 <2.0.0", "1.9", fail},
		{">=1.8.0 <2.0.0", "", fail},
		{">=1.8.0 <2.0.0", "1.9.0 ", fail},
		{">=1.8.0 <2.0.0", "1.9.0-", fail},
		{">=1.8.0 <2.0.0", "1.9.0+", fail},
		{">=1.8.0 <2.0.0", "1.9.0-01", fail},
		{">=1.8.0 <2.0.0", "01.9.0", fail},
		{">=1.8.0 <2.0.0", "1.9.0-a..b", fail},
		{">=1.8.0 <2.0.0", "1.9.0_1", fail},
		{"1.8.0", "1.8.0", yes},
		{"=1.8.0", "1.8.0+x", yes},
		{"1.8.0", "1.8.1", no},
		{">1.8.0", "1.8.0", no},
		{"<=1.8.0", "1.8.0", yes},
		{">1.0.0-alpha <1.0.0-beta", "1.0.0-alpha.1", yes}, // shorter list first
		{">1.0.0-1 <1.0.0-a", "1.0.0-2", yes},              // numbers before words
		{">1.0.0-2 <1.0.0-11", "1.0.0-10", yes},            // numbers as numbers
		{">=0.0.1", "9223372036854775807.0.0", yes},
		{">=0.0.1", "9223372036854775808.0.0", fail},
		{">=0.0.1", "18446744073709551616.0.0", fail},
		{">=1.0.0-1", "1.0.0-9223372036854775807", yes},
		{">=1.0.0-1", "1.0.0-9223372036854775808", fail},
		{">=1.0.0-1", "1.0.0-99999999999999999999999", fail},
		{">=1.0.0-1", "1.0.0-99999999999999999999999a", yes}, // a word
	} {
		t.Run(c.text+" "+c.version, func(t *testing.T) {
			p := mustParse(t, edit(t, "compatibility.range", c.text))
			if got := fault.CodeOf(p.Compatible("my-agent", c.version)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestCompatible_Host(t *testing.T) {
	p := mustParse(t, profile.Starter())
	for host, want := range map[string]fault.Code{
		"my-agent": "", "my-agent2": fault.HostIncompatible, "My-agent": fault.HostInputInvalid, "": fault.HostInputInvalid,
		"my-agent ": fault.HostInputInvalid, strings.Repeat("a", 65): fault.HostInputInvalid,
	} {
		if got := fault.CodeOf(p.Compatible(host, "1.8.0")); got != want {
			t.Errorf("%q: got %q, want %q", host, got, want)
		}
	}
}

// Proves host-profile 15.12.
func TestParse_Range(t *testing.T) {
	const v = "1.8.0"
	for text, ok := range map[string]bool{
		v: true, "=" + v: true, ">=" + v + " <2.0.0 >1.0.0 <=3.0.0": true, ">=1.0.0-a.1+b.2": true,
		">=1.0.0 <2.0.0 <2.0.0 <2.0.0 <2.0.0": false, ">=1.0.0  <2.0.0": false,
		"^1.0.0": false, "~1.0.0": false, "v1.0.0": false, ">=v1.0.0": false, ">=": false, ">= 1.0.0": false,
		"1.x.0": false, "*": false, "1.0.0 || 2.0.0": false, "1.0": false, "==1.0.0": false, "=>1.0.0": false, "!=1.0.0": false,
		">=1.0.0,<2.0.0": false, ">=9223372036854775808.0.0": false, ">=1.0.0-9223372036854775808": false,
	} {
		_, err := profile.Parse(edit(t, "compatibility.range", text))
		if ok {
			if err != nil {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		refused(t, err, fault.ProfileRange, "compatibility.range")
	}
	_, err := profile.Parse(edit(t, "compatibility.range", ">=1.0.0\t<2.0.0"))
	refused(t, err, fault.ProfileValue, "compatibility.range") // no clean string at all
}
