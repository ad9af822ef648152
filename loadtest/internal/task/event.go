package task

import (
	"bytes"
	"fmt"
)

// Event is an event to write: nine headers and a kibibyte of data. It has its attributes as text
// and as bytes, so that no client has to convert them.
type Event struct {
	ID, Source, Type, Subject, Time, ContentType, Dataset, Branch string

	Bytes struct{ Version, ID, Source, Type, Subject, Time, ContentType, Dataset, Branch []byte }
	Data  []byte
}

// DataBytes is the size of an event's data.
const DataBytes = 1024

const keys = 1000

// Events returns the events that clients write in turn, with different ids and keys. They are made
// beforehand, because making them is not measured.
func Events() []Event {
	all := make([]Event, keys)
	data := append(append([]byte(`"`), bytes.Repeat([]byte("x"), DataBytes-2)...), '"')
	for i := range all {
		e := &all[i]
		*e = Event{
			ID: fmt.Sprintf("b7gk2mfz4qwe5rtyu6ijko%04d", i), Source: "/shops/berlin/gateway", Type: "new-data",
			Subject: fmt.Sprintf("bot-%d", i), Time: "2026-01-31T15:04:05.123456789Z", ContentType: "application/json",
			Dataset: fmt.Sprintf("bots/bot-%d", i), Branch: "main", Data: data,
		}
		b := &e.Bytes
		b.Version, b.ID, b.Source, b.Type = []byte("1.0"), []byte(e.ID), []byte(e.Source), []byte(e.Type)
		b.Subject, b.Time, b.ContentType = []byte(e.Subject), []byte(e.Time), []byte(e.ContentType)
		b.Dataset, b.Branch = []byte(e.Dataset), []byte(e.Branch)
	}
	return all
}
