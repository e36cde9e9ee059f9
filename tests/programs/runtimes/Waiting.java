/** Says "ready" and waits for a line. */
class Waiting {
	public static void main(String[] arguments) throws java.io.IOException {
		System.out.println("ready");
		System.in.read();
	}
}
