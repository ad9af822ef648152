package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"tidemill.dev/internal/cli/show"
)

// FlagSet is a command's flags: pflag's, with a name for each value and the variable that replaces
// the flag.
type FlagSet struct{ *pflag.FlagSet }

// The annotations of a flag.
const (
	valueNote     = "tidemill value"          // name of the value, as help shows it
	variableNote  = "tidemill variable"       // variable that replaces the flag
	readElsewhere = "tidemill shown variable" // the same, if the command itself reads the variable
)

// Text adds a flag with a value. *p is its default.
func (f *FlagSet) Text(p *string, long, short, value, usage string) {
	f.StringVarP(p, long, shortOf(long, short), *p, usage)
	f.note(long, valueNote, value)
}

// Number adds a flag with a whole number. *p is its default.
func (f *FlagSet) Number(p *int, long, short, value, usage string) {
	f.IntVarP(p, long, shortOf(long, short), *p, usage)
	f.note(long, valueNote, value)
}

// Span adds a flag with a duration. *p is its default.
func (f *FlagSet) Span(p *time.Duration, long, value, usage string) {
	f.DurationVar(p, long, *p, usage)
	f.note(long, valueNote, value)
}

// Yes adds a flag without a value.
func (f *FlagSet) Yes(p *bool, long, usage string) { f.BoolVar(p, long, *p, usage) }

// YesOr is yes with a short name.
func (f *FlagSet) YesOr(p *bool, long, short, usage string) { f.BoolVarP(p, long, short, *p, usage) }

// format is a flag's value: text or json.
type format struct{ to *string }

func (v format) String() string { return *v.to }

func (v format) Type() string { return "format" }

func (v format) Set(text string) error {
	if text != "text" && text != "json" {
		return errors.New("give text or json")
	}
	*v.to = text
	return nil
}

// Format adds the flag for the format of what a command prints. The default is text.
func (f *FlagSet) Format(p *string, usage string) {
	*p = "text"
	f.VarP(format{p}, "output", "o", usage)
	f.note("output", valueNote, "FORMAT")
}

// Each adds a flag that may be repeated.
func (f *FlagSet) Each(long, value, usage string, take func(string) error) {
	f.FuncP(long, shortOf(long, ""), usage, take)
	f.note(long, valueNote, value)
}

// Several adds a flag with values separated by commas. It may be repeated.
func (f *FlagSet) Several(p *[]string, long, value, usage string) {
	f.Each(long, value, usage, func(text string) error {
		for item := range strings.SplitSeq(text, ",") {
			*p = append(*p, strings.TrimSpace(item))
		}
		return nil
	})
}

// Optional adds a flag with an optional value: --stale, --stale=7d.
func (f *FlagSet) Optional(p *string, long, value, alone, usage string) {
	f.StringVar(p, long, *p, usage)
	f.Lookup(long).NoOptDefVal = alone
	f.note(long, valueNote, value)
}

// shortOf returns the short name of a flag. A long name of one letter is also the short name.
func shortOf(long, short string) string {
	if len(long) == 1 {
		return long
	}
	return short
}

func (f *FlagSet) note(long, kind, text string) {
	_ = f.SetAnnotation(long, kind, []string{text}) // fails only for a flag that does not exist
}

func annotation(f *pflag.Flag, kind string) string {
	if note := f.Annotations[kind]; len(note) > 0 {
		return note[0]
	}
	return ""
}

// FromEnv names the variable that is used if the flag is missing.
func (f *FlagSet) FromEnv(long, variable string) { f.note(long, variableNote, variable) }

// ShownEnv names the variable of a flag in the help text. The command itself reads the variable,
// because its priority depends on other flags.
func (f *FlagSet) ShownEnv(long, variable string) { f.note(long, readElsewhere, variable) }

// readEnv sets each missing flag whose variable is set.
func (f *FlagSet) readEnv(getenv func(string) string) (err error) {
	f.VisitAll(func(flag *pflag.Flag) {
		variable := annotation(flag, variableNote)
		if variable == "" || flag.Changed || err != nil {
			return
		}
		value := strings.TrimSpace(getenv(variable))
		if value == "" {
			return
		}
		if bad := flag.Value.Set(value); bad != nil {
			err = Usagef("the variable %s %q: %v", variable, value, plain(flag, bad))
		}
	})
	return err
}

// twoDashes turns a long flag with one dash, such as -from, into one with two. Both were valid
// before the program used pflag.
func twoDashes(root *cobra.Command, args []string) []string {
	args = append([]string{}, args...)
	long := func(c *cobra.Command) {
		for i, arg := range args {
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
			switch {
			case arg == "--":
				return
			case strings.HasPrefix(arg, "-") && len(name) > 1 && c.Flags().Lookup(name) != nil:
				args[i] = "-" + arg
			}
		}
	}
	long(root)
	if c, _, err := root.Find(args); err == nil && c != root {
		long(c)
	}
	return args
}

// flagError explains an error of pflag and suggests a correction.
func flagError(c *cobra.Command, call []string, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	f := &FlagSet{c.Flags()}
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return unknownFlag(f, fullName(c), "-"+unknown.GetSpecifiedShortnames())
	case errors.As(err, &unknown):
		return unknownFlag(f, fullName(c), "--"+unknown.GetSpecifiedName())
	case errors.As(err, &missing):
		return Usagef("%s needs a value: %s", Dashed(missing.GetSpecifiedName()), missing.GetFlag().Usage)
	case errors.As(err, &invalid):
		flag := invalid.GetFlag()
		return Usagef("%s %q: %v", asCalled(flag, call), invalid.GetValue(), plain(flag, invalid.Unwrap()))
	}
	return Usagef("%v", err)
}

// asCalled returns the flag as the call wrote it: short or long.
func asCalled(flag *pflag.Flag, call []string) string {
	for _, arg := range call {
		if flag.Shorthand != "" && strings.HasPrefix(arg, "-"+flag.Shorthand) && !strings.HasPrefix(arg, "--") {
			return "-" + flag.Shorthand
		}
	}
	return Dashed(flag.Name)
}

func unknownFlag(f *FlagSet, command, arg string) error {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	two := strings.HasPrefix(arg, "--")
	var known []string
	f.VisitAll(func(flag *pflag.Flag) {
		if !two || len(flag.Name) > 1 { // two dashes do not belong to a short flag
			known = append(known, flag.Name)
		}
	})
	shown, near := Dashed(name), ""
	if two {
		shown = "--" + name
	}
	if n, ok := Nearest(name, known); ok {
		near = " did you mean " + Dashed(n) + "?"
	}
	return Usagef("there is no flag %s:%s %s lists the flags", shown, near, strings.TrimSpace("tidemill help "+command))
}

// Dashed returns a flag as a call writes it.
func Dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// plain explains the error of a value that does not parse.
func plain(f *pflag.Flag, err error) error {
	kind := f.Value.Type()
	switch {
	case errors.Is(err, strconv.ErrRange):
		return errors.New("is too large")
	case kind == "bool":
		return errors.New("give true or false")
	case kind == "duration":
		return errors.New("give a duration such as 500ms or 5s")
	case kind == "int":
		return errors.New("give a number")
	}
	return err
}

// WatchEvery is the time between two looks of --watch.
const WatchEvery = time.Second

// Watching adds --watch to a list.
type Watching struct {
	Program
	on bool
}

// Flags adds --watch to the flags of the program.
func (w *Watching) Flags(f *FlagSet) {
	w.Program.Flags(f)
	f.Yes(&w.on, "watch", "keep showing, each time that it changes, until Ctrl-C")
}

// Run runs the program, again and again with --watch.
func (w *Watching) Run(ctx context.Context, s *Session, args []string) error {
	if !w.on {
		return w.Program.Run(ctx, s, args)
	}
	v := view{s: s}
	if f, ok := s.Stdout.(*os.File); ok && show.IsTerminal(f) {
		v.screen = f
	}
	tick := time.NewTicker(WatchEvery)
	defer tick.Stop()
	for {
		var out bytes.Buffer
		inner := *s
		inner.Stdout, inner.Stderr = &out, &out
		err := w.Program.Run(ctx, &inner, args)
		switch {
		case ctx.Err() != nil:
			return nil // Ctrl-C is how a watch ends
		case err != nil && v.shown == "":
			return err
		case err != nil:
			fmt.Fprintf(&out, "%v; retrying\n", err)
		}
		if err := v.show(out.String()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// view shows a text that changes. On a terminal it draws over the text before; elsewhere it prints
// each new text after an empty line.
type view struct {
	s      *Session
	screen *os.File // nil if the output is not a terminal
	shown  string
}

func (v *view) show(text string) error {
	if text == v.shown {
		return nil
	}
	separator := ""
	switch {
	case v.screen != nil:
		text = v.fit(text)
		if n := strings.Count(v.shown, "\n"); n > 0 {
			separator = fmt.Sprintf("\x1b[%dA\x1b[J", n)
		}
	case v.shown != "":
		separator = "\n"
	}
	v.shown = text
	_, err := fmt.Fprint(v.s.Stdout, separator+text)
	return err
}

// fit leaves out what the screen has no room for: a line that wraps, or one that scrolls away, could
// not be drawn over.
func (v *view) fit(text string) string {
	width, height, err := term.GetSize(int(v.screen.Fd()))
	if err != nil {
		width, height = show.UsualWidth, show.UsualHeight
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if most := max(1, height-1); len(lines) > most {
		lines = lines[:most]
	}
	for i := range lines {
		lines[i] = show.Cut(lines[i], width)
	}
	return strings.Join(lines, "\n") + "\n"
}
