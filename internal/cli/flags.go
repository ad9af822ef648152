package cli

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagSet is a command's flags: pflag's, with a name for each value and the variable that replaces
// the flag.
type flagSet struct{ *pflag.FlagSet }

// The annotations of a flag.
const (
	valueNote     = "tidemill value"          // name of the value, as help shows it
	variableNote  = "tidemill variable"       // variable that replaces the flag
	readElsewhere = "tidemill shown variable" // the same, if the command itself reads the variable
)

// text adds a flag with a value. *p is its default.
func (f *flagSet) text(p *string, long, short, value, usage string) {
	f.StringVarP(p, long, shortOf(long, short), *p, usage)
	f.note(long, valueNote, value)
}

func (f *flagSet) number(p *int, long, short, value, usage string) {
	f.IntVarP(p, long, shortOf(long, short), *p, usage)
	f.note(long, valueNote, value)
}

func (f *flagSet) span(p *time.Duration, long, value, usage string) {
	f.DurationVar(p, long, *p, usage)
	f.note(long, valueNote, value)
}

func (f *flagSet) yes(p *bool, long, usage string) { f.BoolVar(p, long, *p, usage) }

// yesOr is yes with a short name.
func (f *flagSet) yesOr(p *bool, long, short, usage string) { f.BoolVarP(p, long, short, *p, usage) }

// each adds a flag that may be repeated.
func (f *flagSet) each(long, value, usage string, take func(string) error) {
	f.FuncP(long, shortOf(long, ""), usage, take)
	f.note(long, valueNote, value)
}

// several adds a flag with values separated by commas. It may be repeated.
func (f *flagSet) several(p *[]string, long, value, usage string) {
	f.each(long, value, usage, func(text string) error {
		for item := range strings.SplitSeq(text, ",") {
			*p = append(*p, strings.TrimSpace(item))
		}
		return nil
	})
}

// optional adds a flag with an optional value: --stale, --stale=7d.
func (f *flagSet) optional(p *string, long, value, alone, usage string) {
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

func (f *flagSet) note(long, kind, text string) {
	_ = f.SetAnnotation(long, kind, []string{text}) // fails only for a flag that does not exist
}

func annotation(f *pflag.Flag, kind string) string {
	if note := f.Annotations[kind]; len(note) > 0 {
		return note[0]
	}
	return ""
}

// fromEnv names the variable that is used if the flag is missing.
func (f *flagSet) fromEnv(long, variable string) { f.note(long, variableNote, variable) }

// shownEnv names the variable of a flag in the help text. The command itself reads the variable,
// because its priority depends on other flags.
func (f *flagSet) shownEnv(long, variable string) { f.note(long, readElsewhere, variable) }

// readEnv sets each missing flag whose variable is set.
func (f *flagSet) readEnv(getenv func(string) string) (err error) {
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
			err = usagef("the variable %s %q: %v", variable, value, plain(flag, bad))
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
	f := &flagSet{c.Flags()}
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return unknownFlag(f, fullName(c), "-"+unknown.GetSpecifiedShortnames())
	case errors.As(err, &unknown):
		return unknownFlag(f, fullName(c), "--"+unknown.GetSpecifiedName())
	case errors.As(err, &missing):
		return usagef("%s needs a value: %s", dashed(missing.GetSpecifiedName()), missing.GetFlag().Usage)
	case errors.As(err, &invalid):
		flag := invalid.GetFlag()
		return usagef("%s %q: %v", asCalled(flag, call), invalid.GetValue(), plain(flag, invalid.Unwrap()))
	}
	return usagef("%v", err)
}

// asCalled returns the flag as the call wrote it: short or long.
func asCalled(flag *pflag.Flag, call []string) string {
	for _, arg := range call {
		if flag.Shorthand != "" && strings.HasPrefix(arg, "-"+flag.Shorthand) && !strings.HasPrefix(arg, "--") {
			return "-" + flag.Shorthand
		}
	}
	return dashed(flag.Name)
}

func unknownFlag(f *flagSet, command, arg string) error {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	two := strings.HasPrefix(arg, "--")
	var known []string
	f.VisitAll(func(flag *pflag.Flag) {
		if !two || len(flag.Name) > 1 { // two dashes do not belong to a short flag
			known = append(known, flag.Name)
		}
	})
	shown, near := dashed(name), ""
	if two {
		shown = "--" + name
	}
	if n, ok := nearest(name, known); ok {
		near = " did you mean " + dashed(n) + "?"
	}
	return usagef("there is no flag %s:%s %s lists the flags", shown, near, strings.TrimSpace("tidemill help "+command))
}

func dashed(name string) string {
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
