package wire

import "testing"

// The error comes after the throttle time.
func TestReadHeartbeat(t *testing.T) {
	if code, err := ReadHeartbeat([]byte{0, 0, 0, 5, 0, 27}); code != 27 || err != nil {
		t.Errorf("code %d, %v; want 27", code, err)
	}
	if _, err := ReadHeartbeat([]byte{0, 0, 0, 5, 0}); err == nil {
		t.Error("an answer cut short is read")
	}
}
