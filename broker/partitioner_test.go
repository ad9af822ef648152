package broker

import "testing"

// The vectors of Kafka's own UtilsTest.testMurmur2.
func TestMurmur2IsKafkas(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) is %d, want %d", key, got, want)
		}
	}
}

func TestPartitionOf(t *testing.T) {
	for _, c := range []struct {
		key        string
		partitions int
		want       int32
	}{
		{"21", 12, (-973932308 & 0x7fffffff) % 12},
		{"abc", 48, 479470107 % 48},
		{"", 1, 0},
	} {
		if got := partitionOf([]byte(c.key), c.partitions); got != c.want {
			t.Errorf("key %q of %d partitions is at %d, want %d", c.key, c.partitions, got, c.want)
		}
	}
}
