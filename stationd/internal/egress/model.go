package egress

import "strings"

// builtInModels are destinations that need modelAccess (station §9.4), which does
// not exist in this version: they are denied whatever a profile allows. An entry
// covers the names below it; a star stands for any text.
func builtInModels() []string {
	return []string{
		"api.openai.com", "*.openai.com", "chatgpt.com", "*.openai.azure.com",
		"api.anthropic.com", "*.anthropic.com", "claude.ai",
		"generativelanguage.googleapis.com", "*-aiplatform.googleapis.com", "aiplatform.googleapis.com",
		"bedrock*.amazonaws.com", "openrouter.ai", "api.mistral.ai", "api.groq.com", "api.x.ai",
		"api.deepseek.com", "api.together.xyz", "api.fireworks.ai", "api.cohere.com",
		"models.dev", "opencode.ai", "ollama.com",
	}
}

// isModel reports whether a name is a model destination.
func isModel(name string, models []string) bool {
	for _, m := range models {
		if domain, ok := strings.CutPrefix(m, "*."); ok {
			m = domain
		}
		before, after, star := strings.Cut(m, "*")
		switch {
		case !star && within(name, m):
			return true
		case star && starred(name, before, after):
			return true
		}
	}
	return false
}

// starred reports whether name, or a name above it, is before, any text, after.
func starred(name, before, after string) bool {
	if !strings.HasSuffix(name, after) || len(name) < len(before)+len(after) {
		return false
	}
	for at := name; ; {
		if strings.HasPrefix(at, before) && len(at) >= len(before)+len(after) {
			return true
		}
		_, rest, ok := strings.Cut(at, ".")
		if !ok {
			return false
		}
		at = rest
	}
}
