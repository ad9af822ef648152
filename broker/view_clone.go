package broker

// Clone copies the view into memory of its own: three allocations at most,
// however many attributes it has.
func (v *View) Clone() View {
	a := make(arena, 0, v.size())
	c := View{
		ID: a.text(v.ID), Source: a.text(v.Source), Type: a.text(v.Type), Subject: a.text(v.Subject),
		DataContentType: a.text(v.DataContentType), DataSchema: a.text(v.DataSchema), Time: a.text(v.Time),
		Data: a.bytes(v.Data), Key: a.bytes(v.Key),
	}
	if len(v.Extensions) > 0 {
		c.Extensions = make([]Attribute, len(v.Extensions))
	}
	for i, x := range v.Extensions {
		c.Extensions[i] = Attribute{a.text(x.Name), a.text(x.Value)}
	}
	if len(v.Foreign) > 0 {
		c.Foreign = make([]Header, len(v.Foreign))
	}
	for i, h := range v.Foreign {
		c.Foreign[i] = Header{Key: a.text(h.Key), Value: a.bytes(h.Value)}
	}
	return c
}

func (v *View) size() int {
	n := len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) +
		len(v.DataContentType) + len(v.DataSchema) + len(v.Time) + len(v.Data) + len(v.Key)
	for _, x := range v.Extensions {
		n += len(x.Name) + len(x.Value)
	}
	for _, h := range v.Foreign {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// arena is one allocation that many copies share. It is made large enough for
// all of them, so that no append moves what was handed out.
type arena []byte

func (a *arena) text(s string) string {
	if s == "" {
		return ""
	}
	start := len(*a)
	*a = append(*a, s...)
	return text((*a)[start:])
}

// bytes caps what it returns, so that an append to it cannot reach its
// neighbour. Nil stays nil: no data is not empty data.
func (a *arena) bytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	start := len(*a)
	*a = append(*a, b...)
	return (*a)[start:len(*a):len(*a)]
}
