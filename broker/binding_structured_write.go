package broker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// MarshalStructured is the event in the JSON event format, on one line. JSON
// data keeps its value but, where it has line breaks, not its layout.
// Extensions are written as strings: their types do not survive a Kafka header.
func MarshalStructured(v *View) []byte {
	const names = 200 // bytes, usually, of what stands around the values
	return AppendStructured(make([]byte, 0, v.size()+names), v)
}

// AppendStructured is [MarshalStructured] at the end of dst.
func AppendStructured(dst []byte, v *View) []byte {
	dst = append(dst, `{"specversion":"1.0"`...)
	dst = appendMember(dst, "id", v.ID)
	dst = appendMember(dst, "source", v.Source)
	dst = appendMember(dst, "type", v.Type)
	dst = appendMember(dst, "subject", v.Subject)
	dst = appendMember(dst, "time", v.Time)
	dst = appendMember(dst, "dataschema", v.DataSchema)
	dst = appendMember(dst, attrContentType, v.DataContentType)
	for _, x := range v.Extensions {
		dst = append(appendQuoted(append(dst, ','), x.Name), ':')
		dst = appendQuoted(dst, x.Value)
	}
	return append(appendData(dst, v), '}')
}

func appendMember(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return appendQuoted(dst, value)
}

func appendData(dst []byte, v *View) []byte {
	switch v.dataForm() {
	case formJSON:
		return appendOneLine(append(dst, `,"data":`...), v.Data)
	case formText:
		return appendQuoted(append(dst, `,"data":`...), text(v.Data))
	case formBinary:
		dst = base64.StdEncoding.AppendEncode(append(dst, `,"data_base64":"`...), v.Data)
		return append(dst, '"')
	}
	return dst
}

// appendOneLine keeps valid JSON as it is unless it has line breaks, which
// readers of one event a line would take for the event's end.
func appendOneLine(dst, data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return append(dst, data...)
	}
	b := bytes.NewBuffer(dst)
	_ = json.Compact(b, data) // fails on invalid JSON only, which dataForm has ruled out
	return b.Bytes()
}

// form is how the JSON event format carries data.
type form int

const (
	formNone form = iota
	formJSON
	formText
	formBinary
)

// wrapping is how deep, at most, an event may lie in what carries it, itself
// counted. Data that is nested to the limit would make all of that unreadable, so
// it travels as base64.
const wrapping = 16

// dataForm decides by datacontenttype and believes it only as far as the bytes
// agree: what claims to be JSON and is not travels as base64, unharmed.
func (v *View) dataForm() form {
	if v.Data == nil {
		return formNone
	}
	media, params := mediaType(v.DataContentType)
	switch {
	case isJSON(media) && utf8.Valid(v.Data) && validJSONWithin(v.Data, wrapping):
		return formJSON
	case strings.HasPrefix(media, "text/") && !isJSON(media) && isUTF8(params["charset"]) && utf8.Valid(v.Data):
		return formText
	}
	return formBinary
}

func isUTF8(charset string) bool {
	return charset == "" || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "us-ascii")
}
