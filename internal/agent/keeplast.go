package agent

import "bytes"

// keepLast is a writer that keeps the last line that is not empty.
type keepLast struct{ text []byte }

func (k *keepLast) Write(data []byte) (int, error) {
	k.text = append(k.text, data...)
	end := len(bytes.TrimRight(k.text, "\n"))
	if i := bytes.LastIndexByte(k.text[:end], '\n'); i >= 0 {
		k.text = k.text[:copy(k.text, k.text[i+1:])]
	}
	return len(data), nil
}

// line ends with a newline; it is empty if there was none.
func (k *keepLast) line() []byte {
	text := bytes.Trim(k.text, "\n")
	if len(text) == 0 {
		return nil
	}
	return append(text, '\n')
}
