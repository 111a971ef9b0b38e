package reason

// Explanation is what users read about a failure. An empty field is left out.
//
// The parts stay apart until they are printed: a server can choose parts of Detail, but nothing of the cure.
type Explanation struct {
	Problem string
	Detail  string // text of the error
	Cure    string
	Command string // a part of the cure that can be pasted; empty without a Cure
}

// Explain returns the explanation of a failure whose reason has this description. The error may be nil.
func (d Description) Explain(err error) Explanation {
	e := Explanation{Problem: d.Problem, Cure: d.Cure}
	if err == nil {
		return e
	}
	e.Detail = err.Error()
	cure, command := cureOf(err)
	if e.Command = command; cure != "" {
		e.Cure = cure
	}
	return e
}

// WithCure returns the text of an error, and its cure if it has one. The error may be nil.
func WithCure(err error) Explanation { return Description{}.Explain(err) }

// Error returns "problem: detail (cure; the command: command)". It implements error for loggers.
func (e Explanation) Error() string {
	text := e.Problem
	if text != "" && e.Detail != "" {
		text += ": "
	}
	text += e.Detail
	if e.Cure == "" {
		return text
	}
	text += " (" + e.Cure
	if e.Command != "" {
		text += "; the command: " + e.Command
	}
	return text + ")"
}
