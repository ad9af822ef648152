package wire

// Heartbeat tells a group's coordinator that a member lives. kafka-go has the
// fields of the answer in the wrong order, so that it never sees an error: its
// member would neither learn of a rebalance nor that it has been forgotten.
func (f *Frame) Heartbeat(client, group string, generation int32, member string) {
	f.begin(heartbeatKey, heartbeatVersion, client)
	b := appendString(f.buf, group)
	b = appendInt32(b, generation)
	b = appendString(b, member)
	f.buf = appendInt16(b, -1) // no static member
	f.end()
}

// ReadHeartbeat reads the answer to Heartbeat.
func ReadHeartbeat(answer []byte) (code int16, err error) {
	c := cursor{b: answer}
	c.int32() // throttled for
	code = c.int16()
	return code, c.err
}
