package jsontensor

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzNumber compares the numbers with those of strconv.
func FuzzNumber(f *testing.F) {
	for _, seed := range []string{"0", "-0", "1.5", "0.1234", "1e5", "1e-45", "3.4028235e38", "3.4028236e38", "1.17549435e-38", "16777217", "8388608.5", "8388609.5",
		"0.1000000014901161193847656249", "123456789012345678901234567890", "1e22", "1e23", "9007199254740993", "1.0000000596046448", "7e-46", "1E+2", "-0.5", "-12.25", "99.123456789012345678", "-3.4e5", "07.5", ";.5", "-.5", "--1.5", "1;.5", "-100.5", "9007199254740993e5", "12345678901234567890e-40", "18446744073709551615e64", "1.2345678901234567e-65", "1e", "01", ".5", "1.", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			return
		}
		if got, end := fraction([]byte(s+strings.Repeat(",", 30)), 0); end >= 0 {
			want, err := strconv.ParseFloat(s[:min(end, len(s))], 32)
			if err != nil || !json.Valid([]byte(s[:end])) || math.Float32bits(got) != math.Float32bits(float32(want)) {
				t.Fatalf("%q is read as %v to its byte %d, not %v: %v", s, got, end, want, err)
			}
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
		wide, err64 := strconv.ParseFloat(s, 64)
		if got, ok := d.double([]byte(s)); ok != (err64 == nil) || ok && math.Float64bits(got) != math.Float64bits(wide) {
			t.Fatalf("%s is %v (%v), not %v (%v)", s, got, ok, wide, err64)
		}
		if got, end := quickFloat([]byte(s+",0,0,0,0,0,0,0,0,0"), 0); err == nil && (end != len(s) || math.Float32bits(got) != math.Float32bits(float32(want))) {
			t.Fatalf("%s is %v up to %d, not %v", s, got, end, want)
		}
	}
}

// Random doubles with up to 19 digits, over all powers of the table and beyond, are read as strconv reads them.
func TestManyDoubles(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	decided, all := 0, 0
	for range 60_000 {
		digits, exp := r.Uint64()>>r.IntN(64), int32(r.IntN(150)-75)
		if r.IntN(4) == 0 { // near the middle of two floats
			digits = (1<<53|r.Uint64()>>11)<<1 | 1
			exp = int32(r.IntN(8))
		}
		s := strconv.FormatUint(digits, 10) + "e" + strconv.Itoa(int(exp))
		want, _ := strconv.ParseFloat(s, 64)
		all++
		if got, ok := nearest(digits, exp); ok {
			if decided++; math.Float64bits(got) != math.Float64bits(want) {
				t.Fatalf("%s is %v, not %v", s, got, want)
			}
		}
	}
	if decided < all/2 {
		t.Errorf("only %d of %d numbers are decided", decided, all)
	}
}

// The table has the first 128 bits of each power.
func TestPowers(t *testing.T) {
	for q := leastPower; q <= mostPower; q++ {
		v := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(q, -q))), nil)
		if n := v.BitLen(); q < 0 {
			v.Quo(new(big.Int).Lsh(big.NewInt(1), uint(n)+127), v)
		} else {
			v.Rsh(v.Lsh(v, 128), uint(n))
		}
		got := new(big.Int).SetUint64(powers[q-leastPower][0])
		got.Or(got.Lsh(got, 64), new(big.Int).SetUint64(powers[q-leastPower][1]))
		if got.Cmp(v) != 0 {
			t.Errorf("1e%d is %x, not %x", q, got, v)
		}
	}
	if len(powers) != mostPower-leastPower+1 {
		t.Errorf("there are %d powers", len(powers))
	}
}
