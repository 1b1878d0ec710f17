package strictjson_test

import (
	"math"
	"testing"

	"drawbridge/shared/strictjson"
)

func TestNumber_Int64(t *testing.T) {
	for _, tc := range []struct {
		in   strictjson.Number
		want int64
		ok   bool
	}{
		{"0", 0, true}, {"-0", 0, true}, {"8000", 8000, true}, {"8000.0", 8000, true}, {"8e3", 8000, true},
		{"80.00e2", 8000, true}, {"8000000e-3", 8000, true}, {"-12E+1", -120, true}, {"0e99999999999999999999", 0, true},
		{"0.0000e-99999999999999999999", 0, true},
		{"9223372036854775807", math.MaxInt64, true}, {"-9223372036854775808", math.MinInt64, true},
		{"9223372036854775808", 0, false}, {"1e19", 0, false}, {"1e18", 1e18, true}, {"1e999999999", 0, false},
		{"1.5", 0, false}, {"1e-1", 0, false}, {"15e-1", 0, false}, {"1e-99999999999999999999", 0, false},
		{"", 0, false}, {"-", 0, false}, {"+1", 0, false}, {"01", 0, false}, {"1.", 0, false}, {".5", 0, false},
		{"1e", 0, false}, {"1e+-2", 0, false}, {"0x10", 0, false}, {"NaN", 0, false}, {" 1", 0, false}, {"1_000", 0, false},
	} {
		if got, ok := tc.in.Int64(); got != tc.want || ok != tc.ok {
			t.Errorf("Number(%q).Int64() = %d, %v, want %d, %v", tc.in, got, ok, tc.want, tc.ok)
		}
	}
}

func FuzzNumber(f *testing.F) {
	for _, s := range []string{"0", "-1.50e+2", "8e3", "1e400", "9007199254740993"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n := strictjson.Number(s)
		i, ok := n.Int64()
		if _, err := strictjson.Parse([]byte(s), strictjson.Limits{}); ok && err != nil {
			t.Fatalf("%q is %d but is not JSON: %v", s, i, err)
		}
		if fl, exact := n.Float64(); ok && exact && i > -1<<53 && i < 1<<53 && fl != float64(i) {
			t.Fatalf("%q is %d and %v", s, i, fl)
		}
	})
}
