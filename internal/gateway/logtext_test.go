package gateway

import (
	"strings"
	"testing"
)

const (
	outLine = "2026-01-31T15:04:05.123456789Z stdout F "
	outPart = "2026-01-31T15:04:05.123456789Z stdout P "
	errLine = "2026-01-31T15:04:05.2Z stderr F "
)

func TestLogText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		chunks     []string
		timestamps bool
		want       string
	}{
		"nothing":         {nil, false, ""},
		"lines":           {[]string{outLine + "a\n" + errLine + "b c\n"}, false, "a\nb c\n"},
		"an empty line":   {[]string{outLine + "\n"}, false, "\n"},
		"timestamps":      {[]string{outLine + "a\n" + errLine + "b\n"}, true, "2026-01-31T15:04:05.123456789Z stdout a\n2026-01-31T15:04:05.2Z stderr b\n"},
		"parts":           {[]string{outPart + "a\n" + outPart + "b\n", outLine + "c\n"}, false, "abc\n"},
		"parts, timed":    {[]string{outPart + "a\n" + outLine + "b\n"}, true, "2026-01-31T15:04:05.123456789Z stdout ab\n"},
		"a part at last":  {[]string{outPart + "a\n"}, false, "a\n"},
		"interrupted":     {[]string{outPart + "a\n" + errLine + "b\n" + outLine + "c\n"}, false, "a\nb\nc\n"},
		"over chunks":     {[]string{outLine[:10], outLine[10:] + "he", "llo\n" + outLine, "you\n"}, false, "hello\nyou\n"},
		"no end":          {[]string{outLine + "a"}, false, "a\n"},
		"no log":          {[]string{"what is this\n"}, true, "what is this\n"},
		"another stream":  {[]string{"2026-01-31T15:04:05Z stdin F a\n"}, false, "2026-01-31T15:04:05Z stdin F a\n"},
		"no log in parts": {[]string{outPart + "a\n" + "what\n"}, false, "a\nwhat\n"},
		"an endless line": {[]string{strings.Repeat("x", mostLeft), "y\n"}, false, strings.Repeat("x", mostLeft) + "\ny\n"},
	} {
		text := logText{timestamps: c.timestamps}
		var got []byte
		for _, chunk := range c.chunks {
			got = text.addChunk(got, []byte(chunk))
		}
		if got = text.endText(got); string(got) != c.want {
			t.Errorf("%s: got %.200q, want %.200q", name, got, c.want)
		}
	}
}

// The text of a log does not depend on how the log is cut into chunks.
func FuzzLogText(f *testing.F) {
	f.Add([]byte(outPart+"a\n"+errLine+"b\n"+outLine+"c\nno log\n"), 7)
	f.Fuzz(func(t *testing.T, log []byte, at int) {
		if len(log) >= mostLeft {
			return
		}
		var whole, cut logText
		want := whole.endText(whole.addChunk(nil, log))
		at = max(0, min(at, len(log)))
		got := cut.endText(cut.addChunk(cut.addChunk(nil, log[:at]), log[at:]))
		if string(got) != string(want) {
			t.Errorf("cut at %d %q, whole %q", at, got, want)
		}
	})
}
