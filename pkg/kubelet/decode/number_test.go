package decode

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// checkFloat compares with strconv, which knows more forms than the text exposition format has.
func checkFloat(t *testing.T, s string) {
	t.Helper()
	token, _, _ := strings.Cut(strings.ReplaceAll(s, "\t", " "), " ")
	want, err := strconv.ParseFloat(token, 64)
	wantOK := (err == nil || math.IsInf(want, 0)) && !strings.ContainsAny(token, "pP_")
	got, n, ok := parseFloat([]byte(s))
	if ok != wantOK || n != len(token) {
		t.Errorf("parseFloat(%q) = %v, %d, %v; want length %d, %v", s, got, n, ok, len(token), wantOK)
	} else if ok && math.Float64bits(got) != math.Float64bits(want) {
		t.Errorf("parseFloat(%q) = %v (%x), want %v (%x)", s, got, math.Float64bits(got), want, math.Float64bits(want))
	}
}

var numbers = []string{
	"", " ", "0", "-0", "+0", "00", "1", "-1", "+1", "1.", ".1", ".", "-.", "1.5 x", "1\t2", "25.080507606", "1.65888e+06",
	"1.7952055045228813e+09", "3.5270656e+07", "0.000000001", "1e22", "1e23", "1e-22", "1e-23", "9007199254740992",
	"9007199254740993", "9007199254740993e1", "9223372036854775807", "18446744073709551615", "18446744073709551616",
	"99999999999999999999999", "0.1", "0.10000000000000000555", "123456789012345678", "1e308", "1e309", "-1e309", "1e400",
	"4.9e-324", "2e-324", "1e-400", "1e", "1e+", "1e-", "1e5x", "1e005", "1e0000000005", "1e100", "1e99", "1E5", "NaN", "nan", "Inf",
	"+Inf", "-inf", "infinity", "infinit", "0x10", "0x1p4", "1_000", "1p5", "1e1.5", "1.2.3", "--1", "1-", "１", "1\r", "1e+-5",
	"0." + strings.Repeat("0", 400) + "1", strings.Repeat("9", 400), "0000000000000000000000000000000000001.5",
}

func TestParseFloat(t *testing.T) {
	for _, s := range numbers {
		checkFloat(t, s)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		v := math.Float64frombits(r.Uint64())
		checkFloat(t, strconv.FormatFloat(v, 'g', -1, 64))
		checkFloat(t, strconv.FormatFloat(v, 'e', r.IntN(20), 64))
		checkFloat(t, strconv.FormatFloat(r.Float64()*1e6, 'f', r.IntN(12), 64))
		checkFloat(t, fmt.Sprintf("%d.%0*de%+d", r.Uint64N(1e6), r.IntN(15), r.Uint64N(1e9), r.IntN(60)-30))
	}
}

func FuzzParseFloat(f *testing.F) {
	for _, s := range numbers {
		f.Add(s)
	}
	f.Fuzz(checkFloat)
}

func TestParseInt(t *testing.T) {
	tests := []struct {
		in   string
		want int64
		n    int
		ok   bool
	}{
		{"0", 0, 1, true},
		{"1795205767486", 1795205767486, 13, true},
		{"+5 ", 5, 2, true},
		{"-5\t6", -5, 2, true},
		{"999999999999999999", 999999999999999999, 18, true},
		{"0000000000000000000000000005", 5, 28, true},
		{"1000000000000000000", 0, 0, false}, // in some 30 million years
		{"9223372036854775808", 0, 0, false},
		{"99999999999999999999", 0, 0, false},
		{"", 0, 0, false},
		{"-", 0, 0, false},
		{"1.5", 0, 0, false},
		{"1e3", 0, 0, false},
		{"x", 0, 0, false},
	}
	for _, tt := range tests {
		got, n, ok := parseInt([]byte(tt.in))
		if ok != tt.ok || ok && (got != tt.want || n != tt.n) {
			t.Errorf("parseInt(%q) = %d, %d, %v; want %d, %d, %v", tt.in, got, n, ok, tt.want, tt.n, tt.ok)
		}
	}
}
