package jsontensor

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"unicode/utf8"
)

// FuzzNumber compares the numbers with those of strconv.
func FuzzNumber(f *testing.F) {
	for _, seed := range []string{"0", "-0", "1.5", "0.1234", "1e5", "1e-45", "3.4028235e38", "3.4028236e38", "1.17549435e-38", "16777217", "8388608.5", "8388609.5",
		"0.1000000014901161193847656249", "123456789012345678901234567890", "1e22", "1e23", "9007199254740993", "1.0000000596046448", "7e-46", "1E+2", "1e", "01", ".5", "1.", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return
		}
		var n json.Number
		valid := json.Unmarshal([]byte(s), &n) == nil && n != "" && s[0] != '"' && s[len(s)-1] > ' ' && s[0] > ' '
		d, end := number([]byte(s), 0)
		if valid != (end == len(s)) {
			t.Fatalf("%q is a number to its byte %d; encoding/json says %v", s, end, valid)
		}
		if !valid {
			return
		}
		want, err := strconv.ParseFloat(s, 32)
		if got, ok := d.float([]byte(s)); ok != (err == nil) || ok && math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Fatalf("%s as a float is %v (%v), not %v (%v)", s, got, ok, want, err)
		}
		want, err = strconv.ParseFloat(s, 64)
		if got, ok := d.double([]byte(s)); ok != (err == nil) || ok && math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%s as a double is %v (%v), not %v (%v)", s, got, ok, want, err)
		}
	})
}

// Random floats, printed by strconv with few or many digits, are parsed as strconv parses them.
func TestManyNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 200_000 {
		f := math.Float32frombits(r.Uint32())
		if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
			continue
		}
		if r.IntN(2) == 0 {
			f = r.Float32()
		}
		s := strconv.FormatFloat(float64(f), "feg"[r.IntN(3)], r.IntN(25)-1, 32+32*r.IntN(2))
		d, end := number([]byte(s), 0)
		want, err := strconv.ParseFloat(s, 32)
		if got, ok := d.float([]byte(s)); end != len(s) || ok != (err == nil) || ok && math.Float32bits(got) != math.Float32bits(float32(want)) {
			t.Fatalf("%s is %v (%v), not %v (%v)", s, got, ok, want, err)
		}
		if got, end := quickFloat([]byte(s+",0,0,0,0,0,0,0,0,0"), 0); err == nil && (end != len(s) || math.Float32bits(got) != math.Float32bits(float32(want))) {
			t.Fatalf("%s is %v up to %d, not %v", s, got, end, want)
		}
	}
}
