package wire

import (
	"slices"
	"testing"
)

const deleteAnswer = "\x00\x00\x00\x00" + "\x00\x00\x00\x01" + "\x00\x01t" +
	"\x00\x00\x00\x01" + "\x00\x00\x00\x03" + "\x00\x00\x00\x00\x00\x00\x00\x09" + "\x00\x1d"

func TestReadDeleteRecords(t *testing.T) {
	all, err := ReadDeleteRecords([]byte(deleteAnswer))
	if want := []OffsetAnswer{{TopicPartition{"t", 3}, 29, 9}}; err != nil || !slices.Equal(all, want) {
		t.Errorf("%+v, error %v", all, err)
	}
}

func FuzzReadDeleteRecords(f *testing.F) {
	f.Add([]byte(deleteAnswer))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, answer []byte) {
		if all, err := ReadDeleteRecords(answer); err == nil && len(all) > len(answer) {
			t.Errorf("%d answers in %d bytes", len(all), len(answer))
		}
	})
}
