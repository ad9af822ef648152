package remote

import "tidemill.dev/internal/cli/command"

// Nouns returns the commands about the nouns of an install.
func Nouns() []command.Noun {
	return []command.Noun{
		{ID: "streams", Title: "Streams", Commands: []command.Command{streamsCommand(), publishCommand(), tailCommand(), kafkaConfigCommand()}},
		{ID: "triggers", Title: "Triggers, schedules and dead letters", Commands: []command.Command{
			triggersCommand(), triggersShowCommand(), triggersPauseCommand(), triggersResumeCommand(), triggersReplayCommand(),
			schedulesCommand(), schedulesPauseCommand(), schedulesResumeCommand(),
			lettersCommand(), lettersShowCommand(), lettersReplayCommand(), lettersDropCommand()}},
		{ID: "data", Title: "Data", Commands: []command.Command{
			dataPutCommand(), dataGetCommand(), dataListCommand(), dataLogCommand(), dataDiffCommand(), dataBranchCommand(), dataCollectCommand(), forgetCommand()}},
		{ID: "runs", Title: "Runs, recipes and pools", Commands: []command.Command{
			runsCommand(), runsShowCommand(), logsCommand(), runsGetCommand(), runsStartCommand(), runsCancelCommand(), runsRetryCommand(), whyCommand(), tryCommand(),
			recipesCommand(), recipesPauseCommand(), recipesResumeCommand(), poolsCommand(), poolsPauseCommand(), poolsResumeCommand()}},
		{ID: "models", Title: "Models", Commands: []command.Command{
			fleetCommand(), driftCommand(), modelsCommand(), modelsShowCommand(), modelsGetCommand(), compareCommand(), promoteCommand(), refuseCommand(), rollbackCommand(), pinCommand(), unpinCommand(),
			trialsCommand(), trialsShowCommand(), judgeCommand(),
			promotionsCommand(), promotionsFreezeCommand(), promotionsThawCommand(),
			rolloutsCommand(), rolloutsShowCommand(), rolloutsPauseCommand(), rolloutsResumeCommand(), rolloutsAbortCommand()}},
		{ID: "scorers", Title: "Scorers and outcomes", Commands: []command.Command{scorersCommand(), scoreCommand(), rescoreCommand(), outcomesCommand(), labelCommand()}},
	}
}
