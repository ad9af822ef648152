package main

import (
	"context"
	"slices"
	"strings"
)

// program is one call of a subcommand. Its fields are its flags.
type program interface {
	flags(*flagSet)
	accept(positional []string) error // what flags and arguments do not go together
	run(ctx context.Context, s *session, positional []string) error
}

// command is a subcommand as help tells of it.
type command struct {
	name     string // several words if it is one of a group
	args     string // positional ones
	summary  string // one line
	about    string // what help NAME adds
	examples []example
	make     func() program
}

// example is a line that a test parses, and what it does.
type example struct{ line, does string }

func commands() []command {
	return []command{
		upCommand(), publishCommand(), tailCommand(), streamsCommand(),
		triggersCommand(), triggersShowCommand(), triggersPauseCommand(), triggersResumeCommand(), triggersReplayCommand(),
		lettersCommand(), lettersShowCommand(), lettersReplayCommand(), lettersDropCommand(),
		schedulesCommand(), schedulesPauseCommand(), schedulesResumeCommand(),
		dataPutCommand(), dataGetCommand(), dataListCommand(), dataLogCommand(), dataDiffCommand(), dataBranchCommand(), dataCollectCommand(), forgetCommand(),
		runsCommand(), runsShowCommand(), runsStartCommand(), runsCancelCommand(), runsRetryCommand(), logsCommand(), whyCommand(),
		recipesCommand(), recipesPauseCommand(), recipesResumeCommand(), poolsCommand(), poolsPauseCommand(), poolsResumeCommand(), tryCommand(),
		modelsCommand(), modelsShowCommand(), modelsRollbackCommand(), compareCommand(), promoteCommand(), rollbackCommand(), pinCommand(), unpinCommand(),
		promotionsCommand(), promotionsFreezeCommand(), promotionsThawCommand(),
		scorersCommand(), scoreCommand(), rescoreCommand(),
		serveCommand(), validateCommand(), tokenNewCommand(), tokenListCommand(), tokenRemoveCommand(),
		initCommand(), demoCommand(), versionCommand(), helpCommand(),
	}
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}

// spelledOut is a command's name for what people write instead.
func spelledOut(name string) string {
	if first, rest, _ := strings.Cut(name, " "); first == "dl" {
		return strings.TrimSpace("dead-letters " + rest)
	}
	return name
}

func findCommand(name string) (command, error) {
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if i >= 0 {
		return all[i], nil
	}
	if group := groupOf(name); len(group) > 0 {
		return command{}, usagef("%s is several commands: %s; tidemill help %s lists them", name, strings.Join(group, ", "), name)
	}
	return command{}, usagef("there is no command %q:%s tidemill help lists those there are", name, didYouMean(name, commandNames()))
}

// groupOf lists the commands that begin with a word and go on with another.
func groupOf(word string) []string {
	return slices.DeleteFunc(commandNames(), func(name string) bool { return !strings.HasPrefix(name, word+" ") })
}

// parse reads a call's flags and arguments into a program.
func (c command) parse(args []string, getenv func(string) string) (program, []string, error) {
	p := c.make()
	f := newFlagSet(c.name)
	p.flags(f)
	positional, err := f.parse(args, getenv)
	if err != nil {
		return nil, nil, err
	}
	return p, positional, p.accept(positional)
}

// splitCommand takes the command's name out of the arguments: a word, or two if
// the first is a group's. Flags may stand before it, so those that every command
// knows tell which word is a value.
func splitCommand(args []string) (name string, rest []string, err error) {
	known := newFlagSet("")
	new(reach).flags(known)
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-h" || a == "--help" || a == "-help":
			return "help", strings.Fields(name), nil
		case a == "--version":
			return "version", nil, nil
		case !strings.HasPrefix(a, "-"):
			name = spelledOut(strings.TrimPrefix(name+" "+a, " "))
			args = slices.Concat(args[:i], args[i+1:])
			if group := groupOf(name); len(group) == 0 || isCommand(name) && !goesOn(name, group, args) {
				return name, args, nil
			}
			i--
			continue
		}
		flag, value := cutFlag(args[i])
		f := known.set.Lookup(flag)
		if f == nil && isCommand(name) { // it is the command's own, and no other word of its name follows
			return name, args, nil
		}
		if f == nil {
			return "", nil, known.unknown(args[i])
		}
		if value == nil && !isBool(f) {
			i++
		}
	}
	if name == "" {
		return "help", nil, nil
	}
	return name, args, nil
}

func isCommand(name string) bool { return slices.Contains(commandNames(), name) }

// goesOn tells whether the arguments behind a command that has others below it
// name one of those.
func goesOn(name string, group, args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return slices.Contains(group, name+" "+a) })
}

// wants checks the number of positional arguments.
func wants(positional []string, names ...string) error {
	switch {
	case len(positional) < len(names):
		return usagef("%s is missing", names[len(positional)])
	case len(positional) > len(names):
		return usagef("%q is one argument too many; put text with spaces in quotes", positional[len(names)])
	}
	return nil
}
