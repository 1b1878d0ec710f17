export async function run() { return { status: "completed" }; }
