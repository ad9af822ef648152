package cli

// installNouns returns the commands about the nouns of an install.
func installNouns() []noun {
	return []noun{
		{"streams", "Streams", []command{streamsCommand(), publishCommand(), tailCommand(), kafkaConfigCommand()}},
		{"triggers", "Triggers, schedules and dead letters", []command{
			triggersCommand(), triggersShowCommand(), triggersPauseCommand(), triggersResumeCommand(), triggersReplayCommand(),
			schedulesCommand(), schedulesPauseCommand(), schedulesResumeCommand(),
			lettersCommand(), lettersShowCommand(), lettersReplayCommand(), lettersDropCommand()}},
		{"data", "Data", []command{
			dataPutCommand(), dataGetCommand(), dataListCommand(), dataLogCommand(), dataDiffCommand(), dataBranchCommand(), dataCollectCommand(), forgetCommand()}},
		{"runs", "Runs, recipes and pools", []command{
			runsCommand(), runsShowCommand(), logsCommand(), runsGetCommand(), runsStartCommand(), runsCancelCommand(), runsRetryCommand(), whyCommand(), tryCommand(),
			recipesCommand(), recipesPauseCommand(), recipesResumeCommand(), poolsCommand(), poolsPauseCommand(), poolsResumeCommand()}},
		{"models", "Models", []command{
			fleetCommand(), modelsCommand(), modelsShowCommand(), modelsGetCommand(), compareCommand(), promoteCommand(), rollbackCommand(), pinCommand(), unpinCommand(),
			promotionsCommand(), promotionsFreezeCommand(), promotionsThawCommand()}},
		{"scorers", "Scorers", []command{scorersCommand(), scoreCommand(), rescoreCommand()}},
	}
}
