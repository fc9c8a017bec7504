package core

// Notify tells Options.Notice something, as readers do.
func (e *Engine) Notify(text string) { e.notice("%s", text) }
