package claude

import "drawbridge/shared/agent"

// maxOwnText is how many characters a paste may have that the place for an own
// text shows as it is (claude §3).
const maxOwnText = 799

// shape is what all questionnaires have in common. Digits are never pressed: they
// choose and submit in one.
var shape = agent.Shape{Reviews: true, MaxText: maxOwnText}

var _ agent.Answering = (*Adapter)(nil)

// Step tells which question of call the prompt shows.
func (a *Adapter) Step(_ string, shown agent.Prompt, call agent.Call) agent.Step {
	return shape.Step(shown, call)
}

// Stroke gives the next input for an answer.
func (a *Adapter) Stroke(_ string, shown agent.Prompt, step agent.Step, answer agent.Answer) (agent.Stroke, error) {
	return shape.Stroke(shown, step, answer)
}
