package wire

import "testing"

func FuzzReadLogDirs(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00" + "\x00\x00\x00\x01" + "\x00\x00" + "\x00\x01d" +
		"\x00\x00\x00\x01" + "\x00\x01t" + "\x00\x00\x00\x01" + "\x00\x00\x00\x03" +
		"\x00\x00\x00\x00\x00\x00\x00\x09" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, answer []byte) {
		dirs, err := ReadLogDirs(answer)
		if err != nil {
			return
		}
		n := 0
		for _, d := range dirs {
			n += len(d.Logs)
		}
		if n > len(answer) {
			t.Errorf("%d sizes of %d bytes", n, len(answer))
		}
	})
}
